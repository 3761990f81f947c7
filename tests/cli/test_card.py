"""Model cards, read back by Hugging Face's own library."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from calibrant import functional
from calibrant.cli import main
from calibrant.recipes import Recipe
from calibrant.runs import RunFolder


@pytest.fixture
def predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(300, 4))
    target = (logits + 2 * random.gumbel(size=logits.shape)).argmax(axis=1)
    np.savez("predictions.npz", logits=logits, target=target)
    return logits, target


def test_a_card_holds_what_was_measured(predictions: tuple[np.ndarray, np.ndarray]) -> None:
    options = ["--model", "net: v2", "--dataset", "my data", "--task", "text-classification", "--resamples", "50"]
    assert main(["card", "predictions.npz", *options, "--out", "cards/card.md"]) == 0
    card = ModelCard.load("cards/card.md")
    assert card.data.model_name == "net: v2"
    results = {result.metric_type: result for result in card.data.eval_results}
    assert list(results) == ["accuracy", "debiased_ece", "ece", "nll"]
    for key, result in results.items():
        assert result.metric_value == pytest.approx(getattr(functional, key)(*predictions), abs=1e-5)
        assert (result.dataset_name, result.task_type) == ("my data", "text-classification")
        low, high = result.metric_args["interval"]
        assert low <= result.metric_value <= high
    assert results["ece"].metric_args["num_bins"] == 15
    assert "net: v2: confidence is off by" in card.text
    assert "![Reliability diagram](card-reliability.png)" in card.text
    assert Path("cards/card-reliability.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("predictions")
def test_a_run_knows_its_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder("runs/v1.0")
    folder.path.mkdir(parents=True)
    folder.write_recipe(Recipe.load("digits-lt"))
    folder.predictions("test").parent.mkdir()
    Path("predictions.npz").rename(folder.predictions("test"))
    assert main(["card", "runs/v1.0", "--figure", "figures/r.svg", "--resamples", "50"]) == 0
    card = ModelCard.load("card.md")
    assert card.data.model_name == "v1.0"
    assert {result.dataset_name for result in card.data.eval_results} == {"digits"}
    assert "](figures/r.svg)" in card.text
    capsys.readouterr()
    assert main(["card", "runs/v1.0"]) == 2
    assert "card.md already exists; choose another name, or pass --force" in capsys.readouterr().err
    assert main(["card", "runs/v1.0", "--out", "card.txt"]) == 2
    assert "--out must end in .md, got card.txt" in capsys.readouterr().err


@pytest.mark.usefixtures("predictions")
def test_an_infinite_nll_is_left_out_of_the_metadata() -> None:
    np.savez("p.npz", probs=[[1.0, 0.0]] * 9 + [[0.5, 0.5]], target=[0] * 8 + [1, 1])
    assert main(["card", "p.npz", "--resamples", "50"]) == 0
    card = ModelCard.load("card.md")
    assert [result.metric_type for result in card.data.eval_results] == ["accuracy", "debiased_ece", "ece"]
