"""The criterion and the callback in skorch's own NeuralNetClassifier, on scikit-learn's digits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint
from skorch.dataset import ValidSplit
from torch import Tensor, nn

from calibrant import functional, losses
from calibrant.integrations.sklearn import scorer
from calibrant.integrations.skorch import Calibration, softmax, softmax_of


class Net(nn.Module):
    def __init__(self, *, probs: bool = False) -> None:
        super().__init__()
        self.layer, self.probs = nn.Linear(64, 10), probs

    def forward(self, x: Tensor) -> Tensor:
        logits = self.layer(x)
        return logits.softmax(1) if self.probs else logits


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return (x[:400] / 16).astype(np.float32), y[:400].astype(np.int64)


def net(*callbacks: Any, **given: Any) -> NeuralNetClassifier:
    torch.manual_seed(0)
    options: dict[str, Any] = {"criterion": losses.MbLS, "predict_nonlinearity": softmax, "max_epochs": 3, "lr": 0.1}
    options |= {"train_split": ValidSplit(4, stratified=True), "verbose": 0, "iterator_train__shuffle": True}
    return NeuralNetClassifier(Net, callbacks=list(callbacks), **{**options, **given})


def test_predict_proba_gives_probabilities(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    fitted = net(Calibration(), criterion__margin=6.0).fit(x, y)
    assert fitted.criterion_.margin == 6.0
    np.testing.assert_allclose(fitted.predict_proba(x).sum(axis=1), 1, atol=1e-5)
    part = ValidSplit(4, stratified=True)(x, y)[1].indices
    expected = functional.ece(fitted.predict_proba(x[part]), y[part], probs=True)
    assert fitted.history[-1]["valid_ece"] == pytest.approx(expected, abs=1e-5)
    found = cross_val_score(net(criterion__margin=6.0, max_epochs=1), x, y, scoring=scorer("ece"), cv=2)
    assert (found < 0).all()


def test_probabilities_are_those_the_loss_trains(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    with pytest.raises(
        ValueError, match=r"predict_proba would not be what LogitNorm trains.*softmax_of\(LogitNorm\(...\)\)"
    ):
        net(Calibration(), criterion=losses.LogitNorm).fit(x, y)
    own = softmax_of(losses.LogitNorm())
    fitted = net(Calibration(), criterion=losses.LogitNorm, predict_nonlinearity=own, max_epochs=1).fit(x, y)
    part = ValidSplit(4, stratified=True)(x, y)[1].indices
    expected = functional.ece(fitted.predict_proba(x[part]), y[part], probs=True)
    assert fitted.history[-1]["valid_ece"] == pytest.approx(expected, abs=1e-5)


def test_adaptive_losses_learn_from_held_out_data(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    options = {"criterion": losses.CALSALM, "criterion__num_classes": 10, "criterion__margin": 0.1, "lr": 0.0}
    fitted = net(Calibration(metrics=["ece"]), **options).fit(x, y)
    by_hand = losses.CALSALM(num_classes=10, margin=0.1)
    part = ValidSplit(4, stratified=True)(x, y)[1].indices
    logits = fitted.forward(x[part])
    for _ in range(3):
        by_hand.observe(logits, torch.from_numpy(y[part]))
        by_hand.adapt()
    assert int(fitted.criterion_.epoch) == 3
    assert by_hand.multipliers.std() > 0
    torch.testing.assert_close(fitted.criterion_.multipliers, by_hand.multipliers)
    assert fitted.history[-1]["valid_multipliers_max"] == pytest.approx(float(by_hand.multipliers.max()))


def test_checkpoints_hold_what_was_learned(digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    options = {"criterion": losses.AdaFocal, "criterion__num_bins": 5}
    checkpoint = Checkpoint(monitor=None, dirname=str(tmp_path))
    fitted = net(Calibration(), checkpoint, **options).fit(*digits)
    restored = net(Calibration(), **options).initialize()
    restored.load_params(checkpoint=checkpoint)
    assert int(restored.criterion_.epoch) == 3
    assert fitted.criterion_.gammas.std() > 0
    assert torch.equal(restored.criterion_.gammas, fitted.criterion_.gammas)


def test_bad_input(digits: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(
        ValueError, match="predict_proba would return logits, since skorch does not know MbLS: pass predict_nonl"
    ):
        net(Calibration(), predict_nonlinearity="auto").fit(*digits)
    with pytest.raises(ValueError, match="Calibration needs held-out data, but there is none: train_split is None"):
        net(Calibration(), train_split=None).fit(*digits)
    with pytest.raises(ValueError, match="logits are probabilities: .* remove its final softmax"):
        net(Calibration(), module__probs=True).fit(*digits)
