"""Choose a calibrator by cross-validated likelihood

Which calibrator is best depends on what is wrong with the network and on how many samples there are to learn it from.
Cross-validation on the validation set takes both into account. Rank by a proper score such as the NLL: the ECE misses
some kinds of miscalibration.
"""

# %% [markdown]
# ## A network with two faults
#
# Its logits are 1.8 times too large, and it favours the first classes over the last.

# %%
import matplotlib.pyplot as plt
import torch

from calibrant import functional
from calibrant.evaluation import cross_validate, fit_all

torch.manual_seed(0)


def draw(size):
    """Logits and labels."""
    true = 2.5 * torch.randn(size, 5)
    target = torch.distributions.Categorical(logits=true).sample()
    return 1.8 * true + torch.tensor([1.5, 0.5, 0.0, -0.5, -1.5]), target


logits, target = draw(1000)
test_logits, test_target = draw(20_000)
methods = [
    *("temperature", "vector", "svs", "matrix", "dirichlet"),
    *("platt", "histogram", "isotonic", "venn-abers", "spline"),
]

# %% [markdown]
# ## Rank them
#
# `cross_validate` is what `calibrant calibrate --method all` uses: fit on four fifths, measure the NLL on the rest, for
# every method, with no calibration as a baseline. First with all 1,000 validation samples, then with the first 60.

# %%
ranking = {}
for size in (1000, 60):
    scores = cross_validate(methods, logits[:size], target[:size])
    ranking[size] = sorted(scores.items(), key=lambda item: item[1])
    best = ", ".join(f"{name} {score:.3f}" for name, score in ranking[size][:5])
    print(f"best with {size} samples: {best}")

# %% [markdown]
# ## Was the choice right?
#
# Fit all of them on the validation set, and measure on 20,000 test samples.

# %%
# alt: Cross-validated and test NLL of each calibrator. They agree for 1,000 samples; for 60 they are far apart.
calibrated = {}
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, (size, scores) in zip(axes, ranking.items(), strict=True):
    fitted = fit_all(methods, logits[:size], target[:size])
    found = {name: one.transform(test_logits) for name, one in fitted.items()}
    calibrated[size] = {"none": test_logits, **found}
    names = [name for name, _ in scores][::-1]
    nll = [float(functional.nll(calibrated[size][name], test_target)) for name in names]
    ax.plot([score for _, score in scores][::-1], names, "o", label="cross-validated")
    ax.plot(nll, names, "|", markersize=12, markeredgewidth=2, label="test set")
    ax.set(title=f"{size:,} samples", xlabel="NLL")
axes[1].legend()

# %% [markdown]
# With 1,000 samples the ranking holds on the test set. Calibrators with a scale and a shift for each class, `vector` and its
# regularised variant `svs`, are made for such faults and come first; `temperature` cannot undo the shift.
#
# With 60 samples the ranking is mostly luck: it picks `spline`, one of the worst on the test set. The scores are also too
# pessimistic, since these 60 happen to be hard. `temperature` and `svs` are safe choices then.
#
# ## Why not rank by ECE

# %%
for name in ("none", "temperature", "svs"):
    one = calibrated[1000][name], test_target
    nll, ece, classwise = functional.nll(*one), functional.ece(*one), functional.classwise_ece(*one)
    print(f"{name:12} NLL {nll:.3f}   ECE {ece:.1%}   classwise ECE {classwise:.1%}")

# %% [markdown]
# Judged by its ECE, temperature scaling has solved nearly all of the problem. But the ECE only looks at the predicted class;
# the classwise ECE and the NLL show that the other probabilities are still wrong.
