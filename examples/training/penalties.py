"""Multipliers enforce a margin that a penalty alone misses

CALS-ALM adds an augmented-Lagrangian penalty to the cross-entropy, with two knobs: the multiplier lambda, which it learns,
and the curvature rho. This example shows what each does to the penalty, and to a problem small enough to watch.
"""

# %% [markdown]
# ## The three penalties
#
# Each is a function of the constraint $z = d / m - 1$: the distance $d$ of a logit from the largest, relative to the margin
# $m$. Up to the margin, $z \le 0$, a logit should cost little; beyond it, more and more. The slope at $z = 0$ is lambda in all
# three (dashed tangents), and a larger rho brings the curve closer to a wall.

# %%
import matplotlib.pyplot as plt
import torch

from calibrant.losses import CALSALM
from calibrant.plots import PenaltyShapes

# alt: The PHR penalty: flat, then a parabola through 0. Left, three rho: larger is steeper. Right, three multipliers.
axes = PenaltyShapes.of("phr").plot()

# %% [markdown]
# P2 and P3 are never flat, so even a sample well inside the margin feels some pull. Beyond it they are steeper than PHR, P2
# most of all, and their slope grows with lambda times rho.

# %%
# alt: The same panels for P2 and P3: both keep falling below 0 instead of becoming flat, and rise faster than PHR above 0.
figure, axes = plt.subplots(2, 1, figsize=(5.4, 4.6), layout="constrained")
for ax, penalty in zip(axes, ("p2", "p3"), strict=True):
    PenaltyShapes.of(penalty).plot(ax)

# %% [markdown]
# ## Logits without a network
#
# Treat the logits of one sample as the parameters. Cross-entropy alone would drive the first logit ever further above the
# others. With a margin of 5 they may be 5 apart: fit the logits, let the loss adapt, and repeat. `rho_period=0` keeps rho
# fixed.


# %%
def fit(loss, logits, target):
    """Minimise a loss over the logits themselves."""
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = loss(logits, target)
        value.backward()
        return value

    optimizer.step(closure)


target = torch.tensor([0])
paths = {}
for rho in (0.01, 0.1, 1.0):
    loss = CALSALM(num_classes=3, margin=5, rho_init=rho, rho_period=0)
    logits = torch.zeros(1, 3, requires_grad=True)
    paths[rho] = []
    for _ in range(12):
        fit(loss, logits, target)
        distance = float((logits[0, 0] - logits[0, 1]).detach())
        paths[rho].append((distance, float(loss.multipliers[1])))
        loss.observe(logits, target)
        loss.adapt()
    first, last = paths[rho][0], paths[rho][-1]
    print(f"rho {rho:4}: distance {first[0]:.2f}, then {last[0]:.2f}; multiplier {last[1]:.4f}")

# %%
# alt: Left: the distance falls from above 5 to the margin, fastest for rho 1. Right: multipliers rise and level off at 0.1.
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for rho, path in paths.items():
    distances, multipliers = zip(*path, strict=True)
    left.plot(distances, marker="o", markersize=3, label=f"rho {rho:g}")
    right.plot(multipliers, marker="o", markersize=3, label=f"rho {rho:g}")
left.axhline(5, color="grey", linestyle=":", label="margin")
left.set(xlabel="times adapted", ylabel="distance of the logits")
right.set(xlabel="times adapted", ylabel="multiplier")
left.legend()

# %% [markdown]
# At the start the multiplier is nearly 0, and only the curvature holds the logits back. They settle beyond the margin,
# further out for a smaller rho: a penalty alone always gives way a little. Each call to `adapt` sets the multiplier to the
# slope of the penalty where the logits came to rest, so the next fit starts with that much pull already at $z = 0$. The
# distance closes in on the margin for every rho; rho decides how soon. With rho 0.01, twelve rounds are not enough.
#
# That is why CALS-ALM can make do with a moderate rho, and raises it only for classes whose constraint does not improve.
