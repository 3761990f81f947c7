"""CALS-ALM is an augmented Lagrangian method: on a convex problem it finds the Lagrange multipliers of the optimum."""

import math

import pytest
import torch

from calibrant.losses import CALSALM

LABELS = torch.tensor([0] * 14 + [1] * 4 + [2] * 1 + [3] * 1)  # frequencies q = 0.7, 0.2, 0.05, 0.05
MARGIN = 2.0


def optimum() -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and multipliers of: minimise the cross-entropy of one shared row of logits, subject to d_k <= m.

    The unconstrained optimum s = q violates d <= 2 for classes 2 and 3, whose distance log(0.7 / 0.05) is 2.64. With the
    constraint, s_1 = q_1 (its multiplier is 0), s_2 = s_3 = s_0 exp(-m), and the probabilities add up to 1. Stationarity of
    CE + (1/K) sum_k lambda_k (d_k / m - 1) in l_k, for k not the top class, reads s_k - q_k = lambda_k / (K m).
    """
    q = torch.tensor([0.7, 0.2, 0.05, 0.05], dtype=torch.float64)
    s_0 = (1 - q[1]) / (1 + 2 * math.exp(-MARGIN))
    s = torch.stack([s_0, q[1], s_0 * math.exp(-MARGIN), s_0 * math.exp(-MARGIN)])
    multipliers = 4 * MARGIN * (s - q)
    multipliers[0] = 0
    return s, multipliers


@pytest.mark.parametrize(
    ("options", "epochs"),
    [({}, 150), ({"rho_init": 10.0}, 40), ({"penalty": "p2"}, 150), ({"penalty": "p3", "multiplier_init": 0.1}, 150)],
    ids=["phr", "phr, rho 10", "p2", "p3"],
)
def test_outer_loop_reaches_the_multipliers_of_the_optimum(options: dict, epochs: int) -> None:
    probabilities, multipliers = optimum()
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    loss = CALSALM(num_classes=4, margin=MARGIN, **options).double()

    def step() -> torch.Tensor:
        inner.zero_grad()
        value = loss(logits.expand(len(LABELS), 4), LABELS)
        value.backward()
        return value

    for _ in range(epochs):
        inner = torch.optim.LBFGS(
            [logits], max_iter=100, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
        )
        inner.step(step)
        loss.observe(logits.detach().expand(len(LABELS), 4), LABELS)
        loss.adapt()

    torch.testing.assert_close(logits.detach().softmax(0), probabilities, rtol=0, atol=1e-4)
    torch.testing.assert_close(loss.multipliers, multipliers, rtol=0, atol=1e-3)
    path = loss.history()["multipliers"]
    assert len(path) == epochs + 1
    assert (path[1, 2:] < multipliers[2:]).all()  # it had a way to go
