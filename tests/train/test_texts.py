"""A run on texts."""

from pathlib import Path

import numpy as np
import pytest
import torch

import trees
from calibrant.data import Texts
from calibrant.errors import InputError
from calibrant.recipes import Data, LossChoice, Model, Optimizer, Recipe
from calibrant.train import fit


@pytest.mark.parametrize("vectors", [None, "v.txt"])
def test_a_run_on_texts(tmp_path: Path, vectors: str | None) -> None:
    trees.newsgroups(tmp_path / "data", articles=30)
    trees.vectors(tmp_path / "data" / "v.txt", " ".join(trees.TOPICS).split(), dim=12)
    mine = Recipe(
        data=Data("newsgroups20", root=str(tmp_path / "data"), validation=0.2, options={"vectors": vectors, "length": 40}),
        model=Model("gpool-cnn", {"width": 16}),
        loss=LossChoice("cals-alm", {"margin": 6.0}),
        optimizer=Optimizer("adam", lr=1e-2),
        epochs=12,
        batch_size=8,
        eval_batch_size=9,
        select="accuracy",
    )
    run = fit(mine, tmp_path / "run", quiet=True)
    assert run is not None
    assert run.result.test["accuracy"] > 0.8  # of four groups
    found = mine.load_data()
    assert isinstance(found.test, Texts)
    assert (len(found.train), len(found.validation), len(found.test)) == (72, 24, 24)
    network = mine.build_model(4, found.facts)
    content = torch.load(run.folder.checkpoint("best"), weights_only=True)["state_dict"]
    network.load_state_dict({k[8:]: v for k, v in content.items() if k.startswith("network.")})
    logits, target = run.folder.open().read_all()
    with torch.no_grad():  # one by one, padded to the full length
        alone = torch.cat([network(found.test.padded(torch.tensor([i]))) for i in range(24)])
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-5)
    assert torch.equal(target, found.test.y)
    with np.load(run.folder.path / "split.npz") as split:
        assert sorted(np.concatenate([split[name] for name in split.files]).tolist()) == list(range(120))


def test_texts_that_are_too_short_for_the_network_are_refused_before_training(tmp_path: Path) -> None:
    trees.newsgroups(tmp_path / "data")
    mine = Recipe(data=Data("newsgroups20", root=str(tmp_path / "data"), options={"length": 20}), model=Model("gpool-cnn"))
    with pytest.raises(InputError, match="the network needs texts of at least 21 words, but `data.options.length` is 20"):
        fit(mine, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run/history.csv").exists()
