"""The axioms of Appendix A, for any arguments."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calibrant.losses.penalties import PENALTIES

positive = st.floats(1e-6, 1e3)
every_penalty = pytest.mark.parametrize("name", PENALTIES)


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@every_penalty
@given(z=st.floats(-1e3, 1e3), rho=positive, multiplier=positive)
def test_slope_is_never_negative_and_that_of_the_value(name: str, z: float, rho: float, multiplier: float) -> None:
    value, derivative = PENALTIES[name]
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
