"""The axioms of Appendix A, for any arguments."""

import pytest
import torch
from hypothesis import given, strategies as st

from calibrant import losses
from calibrant.losses.penalties import PENALTIES, Penalty, fused_in_blocks

positive = st.floats(1e-6, 1e3)
every_penalty = pytest.mark.parametrize("name", PENALTIES)


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@every_penalty
@given(z=st.floats(-1e3, 1e3), rho=positive, multiplier=positive)
def test_slope_is_never_negative_and_that_of_the_value(name: str, z: float, rho: float, multiplier: float) -> None:
    value, derivative, _ = PENALTIES[name]
    at = tensor(z).requires_grad_()
    (slope,) = torch.autograd.grad(value(at, tensor(rho), tensor(multiplier)), at)
    assert slope >= 0
    torch.testing.assert_close(slope, derivative(tensor(z), tensor(rho), tensor(multiplier)), rtol=1e-9, atol=1e-9)


@every_penalty
@given(rho=positive, multiplier=positive)
def test_slope_at_zero_is_the_multiplier(name: str, rho: float, multiplier: float) -> None:
    derivative = PENALTIES[name].derivative
    assert float(derivative(tensor(0.0), tensor(rho), tensor(multiplier))) == pytest.approx(multiplier)


@every_penalty
def test_limits_for_growing_rho(name: str) -> None:
    derivative = PENALTIES[name].derivative
    slopes = [[float(derivative(tensor(z), tensor(rho), tensor(0.5))) for rho in (1e2, 1e4, 1e6)] for z in (-0.1, 0.1)]
    satisfied, violated = slopes
    assert satisfied[0] > satisfied[1] or satisfied[0] == 0
    assert satisfied[2] < 1e-9
    assert violated[0] < violated[1] < violated[2]
    assert violated[2] > 1e4


@every_penalty
def test_continuous_in_slope(name: str) -> None:
    z = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    slope = PENALTIES[name].derivative(z, tensor(2.0), tensor(0.7))
    assert slope.diff().abs().max() < 2e-3
    assert (slope.diff() >= 0).all()


@every_penalty
def test_fused_form_is_value_and_derivative(name: str) -> None:
    """What ``forward`` trains with is what the table says; a new entry cannot train as another."""
    penalty = PENALTIES[name]
    distance = (8 * torch.rand(20, 6, dtype=torch.float64)).requires_grad_()
    rho, multipliers = 0.5 + torch.rand(6, dtype=torch.float64), 0.1 + torch.rand(6, dtype=torch.float64)
    expected = penalty.value(distance / 3 - 1, rho, multipliers).mean(dim=1, keepdim=True)
    (slope,) = torch.autograd.grad(expected.sum(), distance)
    gradient = torch.zeros(20, 6, dtype=torch.float64)
    value, total = penalty.fused(3.0, rho, multipliers, 6)(distance.detach().clone(), gradient)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(-gradient, slope)
    torch.testing.assert_close(total, slope.sum(dim=1, keepdim=True))


def test_every_penalty_of_the_table_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty added to the table by its value and derivative alone trains as itself."""

    def value(z: torch.Tensor, rho: torch.Tensor, multiplier: torch.Tensor) -> torch.Tensor:
        return multiplier * z.exp() / rho

    own = Penalty(value, value, fused_in_blocks(value, value))
    monkeypatch.setitem(PENALTIES, "exp", own)
    loss = losses.CALSALM(4, penalty="exp", margin=2.0, multiplier_init=0.5, rho_init=2.0)
    logits, target = torch.randn(5, 4), torch.randint(4, (5,))
    z = (logits.amax(1, keepdim=True) - logits) / 2 - 1
    expected = losses.CrossEntropy()(logits, target) + (0.25 * z.exp()).mean()
    torch.testing.assert_close(loss(logits, target), expected)
