"""A loss that declares how logits become predictions: everything downstream uses them."""

import pytest
import torch

from calibrant import functional, losses
from calibrant.cli import main
from calibrant.evaluation import TrainedNetwork
from calibrant.integrations.validation import Validation
from calibrant.losses.base import predictive
from calibrant.posthoc import TemperatureScaling
from calibrant.runs import Run

COMMAND = ["train", "digits", "--epochs", "2", "--data.limit", "120", "--quiet", "--seed", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("logitnorm") / "run"
    assert main([*COMMAND, "--loss", "logitnorm", "--logitnorm.temperature", "0.2", "--out", str(folder)]) == 0
    return Run.load(folder)


def test_files_and_metrics_hold_predictions(run: Run) -> None:
    trained = TrainedNetwork.load(run.folder)
    logits, target = run.folder.open().read_all()
    torch.testing.assert_close(logits.norm(dim=1), torch.full((len(logits),), 5.0))
    with torch.no_grad():
        outputs = trained.network(torch.cat([x for x, _, _ in trained._feed(trained.data.test)]))
    assert (outputs.norm(dim=1) - 5).abs().max() > 0.5
    torch.testing.assert_close(losses.LogitNorm(temperature=0.2).predictive(outputs), logits, rtol=1e-4, atol=1e-4)
    assert run.result.test["nll"] == pytest.approx(float(functional.nll(logits, target)), rel=1e-4)
    assert run.result.test["nll"] != pytest.approx(float(functional.nll(outputs, target)), rel=1e-2)


def test_calibrators_and_validation_start_from_predictions(run: Run) -> None:
    logits, target = run.folder.open("validation").read_all()
    assert run.result.temperature == pytest.approx(float(TemperatureScaling().fit(logits, target).temperature_), rel=1e-3)
    row = run.folder.history()[-1]
    assert row["nll"] == pytest.approx(float(functional.nll(logits, target)), rel=1e-4)


def test_callbacks_measure_predictions() -> None:
    loss = losses.LogitNorm()
    logits, target = torch.randn(40, 5), torch.randint(5, (40,))
    validation = Validation(loss, metrics=["nll"])
    validation.update(logits, target)
    expected = float(functional.nll(loss.predictive(logits), target))
    assert validation.finish().scalars["nll"] == pytest.approx(expected, rel=1e-5)


def test_most_losses_change_nothing() -> None:
    logits = torch.randn(3, 4)
    assert predictive(losses.CALSALM(4), logits) is logits
    assert predictive(losses.MDCA(), logits) is logits
    assert predictive(torch.nn.CrossEntropyLoss(), logits) is logits
