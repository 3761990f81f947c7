"""Let the network abstain when it is not sure

If doubtful cases can go to a person, what counts is how many the network can decide on its own at an error rate you can live
with. A good ranking of confidences makes that fraction large; calibration tells you the error rate in advance.
"""

# %% [markdown]
# ## Two networks

# %%
import matplotlib.pyplot as plt
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import CrossEntropy, MbLS
from calibrant.models import SmallCNN
from calibrant.plots import RiskCoverage
from calibrant.posthoc import TemperatureScaling

data = create("digits").long_tailed(20)
x, y, target = data.train.x, data.train.y, data.test.y
held, logits = {}, {}
for name, loss in {"cross-entropy": CrossEntropy(), "MbLS": MbLS()}.items():
    torch.manual_seed(0)
    model = SmallCNN(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        held[name], logits[name] = model(data.validation.x), model(data.test.x)

# %% [markdown]
# ## Risk and coverage
#
# Accept the most confident predictions first. Coverage is the fraction accepted, risk the error rate among them.

# %%
# alt: Error rate against coverage. MbLS stays near 0 up to 60% of the images; cross-entropy is higher everywhere.
figure, ax = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
for i, (name, found) in enumerate(logits.items()):
    RiskCoverage.from_logits(found, target, name).plot(ax, colour=f"C{i}")
    coverage = functional.coverage_at_risk(found, target, risk=0.05)
    print(f"{name}: decides {coverage:.0%} of the images at an error rate of 5%")
ax.axhline(5, color="grey", linestyle=":")

# %% [markdown]
# MbLS is more accurate, and it is better at ranking its predictions from safe to doubtful: it can decide noticeably more images
# at the same risk. Temperature scaling hardly changes the ranking: the areas under the curves below stay the same.
#
# ## The error rate you expect, and the one you get
#
# In deployment there are no labels. All you can do is accept predictions until their mean confidence falls to 95%, and trust
# that about 5% of them are wrong.

# %%
# alt: Real and expected error rates in four panels: far apart for cross-entropy, closer with T, together for MbLS without T.
versions = {}
for name, found in logits.items():
    scaling = TemperatureScaling().fit(held[name], data.validation.y)
    versions[name] = found
    versions[f"{name}, T = {scaling.temperature_:.1f}"] = scaling.transform(found)
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), sharey=True, layout="constrained")
for ax, (name, found) in zip(axes, versions.items(), strict=True):
    confidence, prediction = found.softmax(1).max(1)
    order = confidence.argsort(descending=True)
    number = torch.arange(1, len(order) + 1)
    expected = (1 - confidence[order]).cumsum(0) / number
    accepted = order[expected <= 0.05]
    error = (prediction != target)[accepted].float().mean()
    print(f"{name:23} accepts {len(accepted) / len(order):.0%}, of which {error:.1%} are wrong")
    RiskCoverage.from_logits(found, target, "real").plot(ax)
    ax.plot(100 * number / len(order), 100 * expected, "--", color="C1", label="expected")
    ax.legend(loc="upper left")
    ax.set(title=name, ylabel="", ylim=(0, 16))
axes[0].set_ylabel("error rate, %")

# %% [markdown]
# Cross-entropy accepts nearly everything, and is wrong about three times as often as it says. Temperature scaling brings the
# curves closer together. MbLS delivers what it promises, and here temperature scaling makes it slightly worse: with 200
# validation images, T has an error of about 10%.
