"""How not to fool yourself with a reliability diagram

The same predictions look tidy or alarming depending on how they are binned. Error bars and counts say which gaps to
believe, and labels drawn from the network's own probabilities show what a calibrated network would look like.
"""

# %% [markdown]
# ## The same predictions in 5, 15 and 50 bins
#
# 800 predictions of a slightly overconfident network: its logits are 30% too large. As usual, confidences cluster near 1.

# %%
import torch

from calibrant import functional, stats
from calibrant.plots import ReliabilityDiagram

torch.manual_seed(0)
true = 4 * torch.randn(800, 10)
target = torch.distributions.Categorical(logits=true).sample()
logits = 1.3 * true

# alt: Three reliability diagrams of the same predictions, in 5, 15 and 50 bins: smooth, rough, and jagged.
diagrams = [ReliabilityDiagram.from_logits(logits, target, num_bins=bins) for bins in (5, 15, 50)]
figure = ReliabilityDiagram.side_by_side(diagrams)

# %% [markdown]
# With 5 bins the pattern is plain: accuracy falls short of confidence, most of all near 0.7. With 50 bins it drowns in
# noise, and the ECE has grown, although nothing about the network has changed. Each bin now holds few samples, its accuracy
# is noisier, and the noise counts as error. The error bars, 95% intervals for the accuracy, show this: a gap within the
# error bar is no evidence on its own.

# %%
for bins in (5, 15, 50):
    ece = functional.ece(logits, target, num_bins=bins)
    adaptive = functional.adaptive_ece(logits, target, num_bins=bins)
    largest = functional.mce(logits, target, num_bins=bins)
    print(f"{bins:2} bins: ECE {ece:.3f}, of equal mass {adaptive:.3f}, largest gap {largest:.3f}")
print(f"no bins: smooth ECE {functional.smooth_ece(logits, target):.3f}")
print("true error:", stats.bootstrap("debiased_ece", logits, target))

# %% [markdown]
# The largest gap (MCE) mostly reflects the emptiest bins and more than doubles: it says little about a network. Always report
# an ECE together with the number of bins and samples. The interval for the true error accounts for the noise.
#
# ## Equal width or equal mass
#
# Equal-mass bins hold 53 or 54 samples each, so no point rests on a handful. They cluster on the right, where the
# predictions are. Equal-width bins cover the axis evenly, at the price of points on the left that mean next to nothing.

# %%
# alt: Accuracy against confidence with two binnings. Equal mass has no points below 0.38 and many near 1.
even = ReliabilityDiagram.from_logits(logits, target, name="equal mass", binning="mass")
wide = ReliabilityDiagram.from_logits(logits, target, name="equal width")
axes = ReliabilityDiagram.overlay([wide, even])

# %% [markdown]
# ## What would a calibrated network look like?
#
# Draw labels from the network's own softmax: with these it is perfectly calibrated, and every gap is noise.

# %%
# alt: Four reliability diagrams: the network is nearly always below the diagonal, three calibrated ones scatter around it.
drawn = [torch.distributions.Categorical(logits=logits).sample() for _ in range(3)]
simulated = [ReliabilityDiagram.from_logits(logits, own, "simulated, calibrated") for own in drawn]
real = ReliabilityDiagram.from_logits(logits, target, "the network")
figure = ReliabilityDiagram.side_by_side([real, *simulated])
print("p =", round(stats.calibration_test(logits, target).p_value, 3))

# %% [markdown]
# The calibrated diagrams have gaps as large as the real one, in both directions. What gives the network away is that nearly
# all of its gaps are on the same side, and that the interval for its true error does not reach 0. `calibration_test` makes
# this comparison with 1,000 draws: the p-value is the fraction that look at least as bad as the network.
