"""Calibration of multi-label predictions: one calibrator for each label."""

import copy
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor, nn

from calibrant import inputs
from calibrant.files import refuse_existing
from calibrant.inputs import Array
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.table import CALIBRATORS

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
INDEX: Final = "labels.json"


class PerLabel(nn.Module):
    """A binary calibrator for each of L labels, fitted on its own.

    A module from logits ``(N, L, *spatial)`` to calibrated logits (log-odds) of the same shape.

    Args:
        calibrator: Key of a calibrator, such as ``"platt"``, or one that is not fitted.
        **options: Options of the calibrator, with a key.

    Example:
        >>> import torch
        >>> from calibrant.functional import ece
        >>> from calibrant.posthoc import PerLabel
        >>> torch.manual_seed(0).initial_seed()
        0
        >>> truth = torch.randn(2000, 3)  # log-odds of three labels
        >>> target = torch.rand(2000, 3) < truth.sigmoid()
        >>> logits = truth * torch.tensor([1.0, 2.0, 5.0])  # overconfident by different factors
        >>> calibrators = PerLabel("temperature").fit(logits, target)
        >>> [round(float(own.temperature_)) for own in calibrators]
        [1, 2, 5]
        >>> round(float(ece(logits, target, task="multilabel")), 2)
        0.11
        >>> round(float(ece(calibrators(logits), target, task="multilabel")), 2)
        0.02
    """

    def __init__(self, calibrator: str | Calibrator = "temperature", **options: Any) -> None:
        from calibrant.posthoc import create  # noqa: PLC0415 - which imports this file lazily

        super().__init__()
        self.template = create(calibrator, **options) if isinstance(calibrator, str) else copy.deepcopy(calibrator)
        if CALIBRATORS[self.template.key].dense:
            raise ValueError(f"{self.template.key} calibrates images as a whole; choose a calibrator of single scores")
        self.labels = nn.ModuleList()

    def fit(self, logits: Array, target: Array, *, ignore_index: int = -100, probs: bool | None = None) -> "Self":
        """Fit every label's calibrator on held-out predictions.

        Args:
            logits: ``(N, L, *spatial)``; with ``probs=True``, probabilities.
            target: 0 or 1, in the same shape; or probabilities of 1 if the calibrator takes soft targets.
            ignore_index: Value of targets to ignore.
            probs: As in :class:`calibrant.inputs.Given`.
        """
        samples = inputs.for_measuring(
            logits,
            target,
            ignore_index,
            probs=probs,
            task="multilabel",
            soft=None if self.template.soft else f" for the calibrator {self.template.key!r}",
        )
        labels, targets = [], samples.targets(ignore_index)
        for k in range(samples.logits.shape[2]):
            own = copy.deepcopy(self.template)
            try:
                own.fit(samples.logits[:, :, k], targets[:, k], ignore_index=ignore_index, probs=False, task="binary")
            except ValueError as error:
                raise ValueError(f"label {k}: {error}") from error
            labels.append(own)
        self.labels = nn.ModuleList(labels)
        return self

    def forward(self, logits: Tensor, *, probs: bool | None = None) -> Tensor:
        """Calibrated logits (log-odds), in the shape of the input."""
        if not len(self.labels):
            raise RuntimeError("PerLabel is not fitted yet; call fit(logits, target) first")
        if logits.dim() < 2 or logits.shape[1] != len(self.labels):
            raise ValueError(f"logits must have shape (N, {len(self.labels)}, *spatial), got {tuple(logits.shape)}")
        both = inputs.as_logits(logits.unsqueeze(1), probs=probs, task="binary")
        found = [own(both[:, :, k], probs=False) for k, own in enumerate(self.labels)]
        return torch.stack([log_probs[:, 1] - log_probs[:, 0] for log_probs in found], dim=1)

    @torch.no_grad()
    def transform(self, logits: T, *, probs: bool | None = None) -> T:
        """Calibrated log-odds, in the type of the input: a tensor, an array, a data frame or a list."""
        found: T = inputs.like(self(inputs.as_tensor(logits, "logits"), probs=probs), logits)  # type: ignore[arg-type]
        return found

    @torch.no_grad()
    def predict_proba(self, logits: T, *, probs: bool | None = None) -> T:
        """Calibrated probabilities, in the type of the input."""
        odds = self(inputs.as_tensor(logits, "logits"), probs=probs)  # type: ignore[arg-type]
        found: T = inputs.like(odds.sigmoid(), logits)
        return found

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, label: int) -> Calibrator:
        own = self.labels[label]
        assert isinstance(own, Calibrator)  # noqa: S101
        return own

    def save(self, folder: str | Path) -> None:
        """Write a folder with one calibrator per label.

        Raises:
            InputError: If ``folder`` already exists.
        """
        folder = Path(folder)
        refuse_existing(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            for k in range(len(self)):
                self[k].save(new / str(k))
            (new / INDEX).write_text(json.dumps({"labels": len(self)}))
            new.replace(folder)

    @staticmethod
    def load(folder: str | Path) -> "PerLabel":
        """Read what :meth:`save` wrote; the files cannot run code.

        Raises:
            ValueError: If the folder does not hold calibrators of labels.
        """
        folder = Path(folder)
        try:
            count = int(json.loads((folder / INDEX).read_text())["labels"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} does not hold calibrators written by PerLabel.save ({error})") from error
        labels = [Calibrator.load(folder / str(k)) for k in range(count)]
        made = PerLabel(type(labels[0])(**labels[0].options))
        made.labels = nn.ModuleList(labels)
        return made
