"""Your own loss in ten lines

Subclass `PenalisedLoss` for a penalty on the batch that can be added to any loss, or `AutoStrength` for a loss that sets its
own weight from validation data. The first example shows why the calibration error of training batches is a poor signal; the
second uses validation data instead.
"""

# %% [markdown]
# ## A penalty on the batch
#
# A penalty receives a validated batch: logits, targets, and which samples are not ignored. This one is the mean confidence
# minus the accuracy, if that is positive. Soft targets, `ignore_index`, and adding it to another loss need no extra code.

# %%
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import AdaptiveLoss, AutoStrength, CrossEntropy, MbLS, PenalisedLoss, Strength
from calibrant.losses.auxiliary import count, top_label
from calibrant.models import SmallCNN
from calibrant.plots import ReliabilityDiagram


class Overconfidence(PenalisedLoss):
    """Any loss plus the overconfidence of the batch."""

    def __init__(self, weight=5.0, base="ce"):
        super().__init__(weight, base)

    def penalty(self, given):
        """Mean confidence minus accuracy, if positive."""
        confidence, correct = top_label(given)
        return (confidence.sum() - correct.sum()).relu() / count(given)


# %% [markdown]
# ## A weight that follows validation data
#
# `AutoStrength` observes validation samples, estimates the temperature that fits them best, and adjusts one hyper-parameter
# of the loss until that temperature is 1. Here it is the weight of an entropy term. It starts at its default, `usual`;
# `gain` says roughly how fast the log of the temperature changes with the log of the weight. It is negative, since more
# weight means less confidence.


# %%
class AutoConfidencePenalty(AutoStrength):
    """Cross-entropy minus the entropy, with a weight that needs no tuning."""

    strength = Strength("weight", usual=0.1, bounds=(1e-3, 10.0), gain=-0.5)
    learned = logged = ("weight", "temperature")

    def __init__(self, weight="auto"):
        super().__init__()
        self._hold("weight", weight)

    def forward(self, logits, target):
        """Return the loss."""
        log_probs = logits.log_softmax(1)
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        return functional.cross_entropy_loss(logits, target) - self.weight * entropy


# %% [markdown]
# ## Do they help?

# %%
data = create("digits").long_tailed(20)
x, y = data.train.x, data.train.y
losses = {
    "cross-entropy": CrossEntropy(),
    "Overconfidence": Overconfidence(),
    "MbLS": MbLS(),
    "Overconfidence, MbLS": Overconfidence(base=MbLS()),
    "AutoConfidencePenalty": AutoConfidencePenalty(),
}
diagrams = {}
for name, loss in losses.items():
    torch.manual_seed(0)
    model = SmallCNN(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(30):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        if isinstance(loss, AdaptiveLoss):
            with torch.no_grad():
                loss.observe(model(data.validation.x), data.validation.y)
            loss.adapt()
    with torch.no_grad():
        seen, logits = model(x), model(data.test.x)
    gap = seen.softmax(1).amax(1).mean() - functional.accuracy(seen, y)
    diagrams[name] = ReliabilityDiagram.from_logits(logits, data.test.y, name)
    print(f"{name:22} test ECE {diagrams[name].ece:.1%}   training overconfidence {gap:+.1%}")

# %%
# alt: Three reliability diagrams: cross-entropy is below the diagonal, with or without the Overconfidence penalty; the last one is close.
shown = ("cross-entropy", "Overconfidence", "AutoConfidencePenalty")
figure = ReliabilityDiagram.side_by_side([diagrams[name] for name in shown])

# %% [markdown]
# The penalty on the batch helps less than you might hope. The last column says why: on its own training images the network
# is not overconfident, so there is nothing to penalise. Any penalty that compares confidence and accuracy on training
# batches has this weakness once the training set is fitted.
#
# The weight that follows validation data roughly halves the error of cross-entropy, without a search for the best weight.
# MbLS, a better penalty, does more.
