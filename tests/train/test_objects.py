"""From Python: recipes by name, and networks, losses and samples as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from calibrant import data, losses
from calibrant.errors import InputError
from calibrant.recipes import GIVEN, Data, LossChoice, Recipe
from calibrant.runs import RunFolder
from calibrant.train import fit


def blobs(count: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points around three centres."""
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return torch.randn(count, 5, generator=random) + 4 * nn.functional.one_hot(y, 5), y


class Numbered(Dataset[tuple[Tensor, int]]):
    """A data set that says nothing about its labels before it is read."""

    def __init__(self, count: int) -> None:
        self.x, self.y = blobs(count)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_by_name(here: Path) -> None:
    run = fit("digits-lt", loss="mbls", epochs=1, quiet=True, **{"data.limit": 30, "loss.margin": 4})
    assert run is not None
    assert run.folder == RunFolder("runs/digits-lt/mbls-seed0")
    assert (here / "runs/digits-lt/mbls-seed0/metrics.json").exists()
    assert run.recipe.loss == LossChoice("mbls", {"margin": 4})
    again = fit(
        Recipe.load("digits-lt", epochs=1, data={"limit": 30}), "other", loss={"name": "mbls", "margin": 4}, quiet=True
    )
    assert again is not None
    assert again.folder.predictions().read_bytes() == run.folder.predictions().read_bytes()


def options(**more: Any) -> dict[str, Any]:
    return {"epochs": 8, "batch_size": 20, "optimizer": {"name": "adam", "lr": 0.05}, "quiet": True, **more}


@pytest.mark.usefixtures("here")
def test_a_network_a_loss_and_a_pair_of_tensors() -> None:
    torch.manual_seed(0)
    network, loss = nn.Linear(5, 3), losses.CALSALM(3, margin=2.0)
    with pytest.warns(UserWarning, match="24 of 120 samples"):
        run = fit("digits-lt", "run", model=network, loss=loss, data=blobs(), **options())
    assert run is not None
    assert run.result.test["accuracy"] > 0.9
    assert run.result.loss == f"{GIVEN}CALSALM"
    assert (run.recipe.model.name, run.recipe.data.name) == (f"{GIVEN}Linear", f"{GIVEN}tuple")
    assert run.recipe.data.long_tail.ratio == 1  # that of digits-lt was for its own data
    assert loss.multipliers.std() > 0
    logits, target = run.folder.open().read_all()
    with np.load("run/split.npz") as split:
        parts = {name: set(split[name].tolist()) for name in split.files}
        x, y = (part[torch.from_numpy(split["test"])] for part in blobs())
    assert sorted(i for part in parts.values() for i in part) == list(range(120))
    assert {name: len(part) for name, part in parts.items()} == {"train": 86, "validation": 10, "test": 24}
    with torch.no_grad():
        torch.testing.assert_close(network(x), logits)  # it is left with the weights of the run
    assert torch.equal(y, target)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["tensors", "arrays", "TensorDataset", "Dataset", "lists"])
def test_samples_of_any_kind_give_the_same(kind: str) -> None:
    make = {
        "tensors": blobs,
        "arrays": lambda n: tuple(part.numpy() for part in blobs(n)),
        "lists": lambda n: [part.tolist() for part in blobs(n)],
        "TensorDataset": lambda n: TensorDataset(*blobs(n)),
        "Dataset": Numbered,
    }[kind]
    torch.manual_seed(0)
    parts = {"train": make(90), "test": make(30), "validation": make(21)}
    run = fit(Recipe(data=Data(workers=0)), "run", model=nn.Linear(5, 3), data=parts, **options(**{"data.workers": 0}))
    assert run is not None
    torch.manual_seed(0)
    network = nn.Linear(5, 3)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    x, y = blobs(90)
    for epoch in range(8):  # by hand
        order = torch.randperm(90, generator=torch.Generator().manual_seed(epoch * 1009))
        for batch in order.split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        torch.testing.assert_close(run.folder.open().read_all()[0], network(blobs(30)[0]), rtol=1e-4, atol=1e-5)
    assert [part["samples"] for part in run.folder.environment().data.values()] == [90, 21, 30]


@pytest.mark.usefixtures("here")
def test_images_of_ones_own_for_a_network_of_ours() -> None:
    x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
    run = fit("digits", "run", data={"train": (x, y), "test": (x, y)}, model="small-cnn", **options(epochs=1))
    assert run is not None
    assert run.result.validation.samples == 6
    names = data.dataset_from({"train": (x, y), "test": (x, y)})
    assert (names.num_classes, list(names.classes), names.facts) == (2, ["0", "1"], {"channels": 1})


@pytest.mark.usefixtures("here")
def test_objects_are_matched_by_what_they_are() -> None:
    parts = {"train": blobs(90), "test": blobs(30)}
    first = fit("digits", "run", model=nn.Linear(5, 3), data=parts, **options(epochs=1))
    again = fit("digits", "run", model=nn.Linear(5, 3), data=parts, **options(epochs=1))
    assert first is not None
    assert again is not None
    assert again.result.test["nll"] == first.result.test["nll"]
    with pytest.raises(InputError, match="another recipe \\(model.name was 'given: Linear', now 'given: Sequential'\\)"):
        fit("digits", "run", model=nn.Sequential(nn.Linear(5, 3)), data=parts, **options(epochs=1))
    with pytest.raises(InputError, match="(model|data).name: .* fit\\(\\) as an object"):
        fit(first.recipe, "other", quiet=True)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"data": (torch.rand(5, 3), torch.rand(5))},
            r"^data: expected inputs .*, got torch.float32",
        ),
        ({"data": (torch.rand(5, 3), torch.arange(4))}, r"got .*\(5, 3\) and torch.int64 \(4,\)"),
        ({"data": 3}, 'data: expected a pair .* "test": ...}.*; got int'),
        ({"data": {"train": blobs(), "dev": blobs()}}, "train, validation or test, not 'dev'"),
        ({"data": {"test": blobs()}}, "there is no part .*train"),
        (
            {"data": blobs(), "model": nn.Linear(5, 7)},
            r"gives \(2, 7\) for inputs \(2, 5\); expected logits \(2, 3\)",
        ),
        ({"data": blobs(), "model": nn.Linear(4, 3)}, "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_what_does_not_fit_is_told(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, RuntimeError), match=message):
        fit("digits", "run", quiet=True, **fields)
    assert not Path("run").exists()
