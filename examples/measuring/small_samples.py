"""A small test set makes any network look miscalibrated

The plain ECE of a perfectly calibrated network is not 0. With few samples, the accuracy in each bin is noisy, and gaps in
either direction count, so the noise adds up. Debiasing removes some of it; the interval for the true error tells you about
the rest.
"""

# %% [markdown]
# ## Two networks with a known error
#
# Draw logits, and labels from their softmax: a network with these logits is perfectly calibrated. Multiply them by 1.5, and
# it claims more than it knows; a very large sample shows by how much.

# %%
import matplotlib.pyplot as plt
import torch

from calibrant import functional, stats

torch.manual_seed(0)


def draw(size, factor):
    """Logits that are too large by a factor, and labels."""
    logits = 2 * torch.randn(size, 10)
    return factor * logits, torch.distributions.Categorical(logits=logits).sample()


factors = {"calibrated": 1.0, "overconfident": 1.5}
truth = {"calibrated": 0.0, "overconfident": float(functional.ece(*draw(500_000, 1.5)))}
print(f"true error of the overconfident network: {truth['overconfident']:.1%}")

# %% [markdown]
# ## The same networks on many test sets
#
# For each size, 60 test sets: lines are means, bands hold the middle 80%.

# %%
sizes = [50, 100, 200, 500, 1000, 2000, 5000, 10_000]
metrics = {"plain ECE": functional.ece, "debiased ECE": functional.debiased_ece}
found = {}
for name, factor in factors.items():
    for size in sizes:
        sets = [draw(size, factor) for _ in range(60)]
        for title, metric in metrics.items():
            found[name, title, size] = 100 * torch.stack([metric(*own) for own in sets])

# %%
# alt: Error against test samples for two networks. Plain ECE rises steeply below 1,000 samples; debiased ECE rises less.
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, name in zip(axes, factors, strict=True):
    for title in metrics:
        values = torch.stack([found[name, title, size] for size in sizes])
        ax.plot(sizes, values.mean(1), marker="o", markersize=3, label=title)
        ax.fill_between(sizes, values.quantile(0.1, 1), values.quantile(0.9, 1), alpha=0.2)
    ax.axhline(100 * truth[name], color="black", linestyle=":", label="truth")
    ax.set(title=name, xscale="log", xlabel="test samples", ylim=(0, 25))
axes[0].set_ylabel("error, %")
axes[1].legend()

# %% [markdown]
# With 100 samples, a perfectly calibrated network has an ECE of more than 10 points. So do not compare ECEs from test sets
# of different sizes. From a few hundred samples on, debiasing removes the bias for the overconfident network. For the
# calibrated one it removes only part of it: a noisy estimate that is never negative is positive on average.
#
# ## The interval covers the truth
#
# Your test set is one of these. `stats.bootstrap("debiased_ece", ...)` gives an interval for the true error, here for 15
# test sets of 300 samples.

# %%
# alt: Intervals of 15 test sets: for the calibrated network they start at 0, for the other one they surround the truth.
figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for ax, (name, factor) in zip(axes, factors.items(), strict=True):
    sets = [draw(300, factor) for _ in range(15)]
    intervals = [stats.bootstrap("debiased_ece", *own, resamples=300) for own in sets]
    for place, (value, low, high) in enumerate(intervals):
        ax.plot([place, place], [100 * low, 100 * high], color="C1")
        ax.plot(place, 100 * value, "o", color="C1", markersize=4)
    ax.axhline(100 * truth[name], color="black", linestyle=":")
    ax.set(title=name, xlabel="test set", ylim=(-1, 26))
    inside = sum(low <= truth[name] <= high for _, low, high in intervals)
    print(f"{name}: {inside} of {len(intervals)} intervals contain the truth")
axes[0].set_ylabel("true error, %")

# %% [markdown]
# An interval that starts at 0 says that the samples do not contradict perfect calibration. That is no proof: now and then it
# happens to the overconfident network, too. The upper end says how bad it could still be, more than 10 points in most of
# these test sets. If the interval is too wide, only more samples help.
