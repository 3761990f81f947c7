"""Reference vectors of the authors' released code; see golden/README.md."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(os.environ.get("CALIBRANT_GOLDEN", Path(__file__).parent / "golden"))


@dataclass(frozen=True)
class Case:
    id: str
    file: str
    family: str
    method: str
    params: dict[str, Any]
    tolerance: dict[str, dict[str, float]]
    flags: tuple[str, ...]

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(FOLDER / self.file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __getitem__(self, name: str) -> Tensor:
        """An array as a tensor, float32 turned into float64 (as the reference values were computed)."""
        tensor = torch.from_numpy(self.arrays[name])
        return tensor.double() if tensor.dtype is torch.float32 else tensor

    def check(self, actual: Tensor, name: str, precision: str = "float64", **options: Any) -> None:
        torch.testing.assert_close(
            actual.detach().to(torch.float64),
            self[name].to(torch.float64),
            **{**self.tolerance[precision], **options},
            msg=lambda message: f"{self.id}, {name}: {message}",
        )


def cases(*families: str) -> list[Case]:
    rows = json.loads((FOLDER / "manifest.json").read_text())["cases"]
    names = Case.__dataclass_fields__
    return [
        Case(**{key: tuple(value) if key == "flags" else value for key, value in row.items() if key in names})
        for row in rows
        if row["family"] in families
    ]
