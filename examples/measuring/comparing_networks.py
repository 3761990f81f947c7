"""Two networks are not two methods

A paired bootstrap on the test set says whether one network is better than another. It does not say whether the method behind
it is better: train the same method again with another seed, and the two networks may differ just as clearly.
"""

# %% [markdown]
# ## Two losses, six seeds each
#
# Cross-entropy and MbLS on digits, with a network that trains in no time.

# %%
import itertools

import matplotlib.pyplot as plt
import torch

from calibrant import functional, stats
from calibrant.data import create
from calibrant.losses import CrossEntropy, MbLS
from calibrant.models import MLP
from calibrant.stats import Means

data = create("digits").long_tailed(20)
x, y, target = data.train.x, data.train.y, data.test.y


def train(loss, seed):
    """Test logits of a network."""
    torch.manual_seed(seed)
    model = MLP(10, inputs=64, hidden=[64])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        return model(data.test.x)


losses = {"cross-entropy": CrossEntropy(), "MbLS": MbLS()}
logits = {name: [train(loss, seed) for seed in range(6)] for name, loss in losses.items()}
nll = {name: [float(functional.nll(z, target)) for z in runs] for name, runs in logits.items()}
for name, values in nll.items():
    print(f"{name:14} NLL by seed:", [round(value, 3) for value in values])

# %% [markdown]
# ## One network against another
#
# `stats.compare` resamples the test images, the same ones for both networks. Take the worst cross-entropy network and the
# best MbLS network:

# %%
worst = max(range(6), key=nll["cross-entropy"].__getitem__)
best = min(range(6), key=nll["MbLS"].__getitem__)
print(stats.compare("nll", logits["cross-entropy"][worst], logits["MbLS"][best], target))
pairs = list(itertools.combinations(logits["cross-entropy"], 2))
same = [stats.compare("nll", a, b, target) for a, b in pairs]
clear = sum(found.p_value < 0.05 for found in same)
print(f"cross-entropy against itself: p < 0.05 in {clear} of {len(pairs)} pairs of seeds")

# %% [markdown]
# Read as a comparison of methods, the first line says that MbLS is clearly better. The second shows what that is worth: most
# pairs of networks trained with the very same loss also differ "significantly". They do differ; the bootstrap is right about
# the networks. It knows nothing about the spread over seeds.

# %%
# alt: Left: differences between seeds of one loss, most intervals exclude 0. Right: for all six seeds MbLS has a higher NLL.
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for place, found in enumerate(sorted(same, key=lambda found: found.difference)):
    colour = "C3" if found.p_value < 0.05 else "C7"
    left.plot([place, place], [found.low, found.high], color=colour)
    left.plot(place, found.difference, "o", color=colour, markersize=4)
left.axhline(0, color="black", linestyle=":")
left.set(title="the same loss, two seeds", xlabel="pair of seeds", xticks=[])
left.set_ylabel("difference of NLL")
right.plot(["cross-entropy", "MbLS"], list(nll.values()), marker="o")
right.set(title="both losses, one line per seed", ylabel="NLL", xlim=(-0.3, 1.3))

# %% [markdown]
# ## One method against another
#
# `compare_runs` takes a value per run, paired by seed. All runs share the test images, so no number of seeds averages out
# their noise; `shared_variance` estimates that part of the variance.

# %%
each = torch.nn.CrossEntropyLoss(reduction="none")  # the NLL of each image
scores = [[Means(each(z, target).double(), None) for z in runs] for runs in logits.values()]
shared = stats.shared_variance(*scores)
print("six seeds:", stats.compare_runs(*nll.values(), shared=shared))

# %% [markdown]
# Seed by seed, MbLS is worse on this problem, the opposite of what the two hand-picked networks suggested. Pairing matters:
# the seeds of one loss differ about as much as the losses, but a seed that is bad for one is bad for the other. `calibrant
# compare` trains and tests this way.
