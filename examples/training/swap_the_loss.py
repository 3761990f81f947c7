"""Get a calibrated network by swapping the loss

The training loop stays the same; only the loss changes. MbLS keeps logits from drifting too far apart; CALS-ALM does the
same for each class separately and learns from validation images how hard to push.
"""

# %% [markdown]
# ## Three losses, one loop
#
# The data is scikit-learn's digits with a long tail: 84 training images of the first class, fewer of each class after it, 4
# of the last.

# %%
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import CALSALM, AdaptiveLoss, CrossEntropy, MbLS
from calibrant.models import SmallCNN
from calibrant.plots import ReliabilityDiagram

data = create("digits").long_tailed(20)
x, y = data.train.x, data.train.y
print(data)

# %% [markdown]
# Every loss is called as `loss(logits, target)`. CALS-ALM also has its own weights, one per class. After each epoch it
# observes the validation logits, in as many batches as you like, and adapts once. These are the only extra lines.

# %%
losses = {"cross-entropy": CrossEntropy(), "MbLS": MbLS(), "CALS-ALM": CALSALM(num_classes=10)}
logits = {}
for name, loss in losses.items():
    torch.manual_seed(0)
    model = SmallCNN(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        if isinstance(loss, AdaptiveLoss):
            with torch.no_grad():  # and model.eval(), if it has dropout or batch normalisation
                loss.observe(model(data.validation.x), data.validation.y)
            loss.adapt()
    with torch.no_grad():
        logits[name] = model(data.test.x)

# %% [markdown]
# ## On the test set
#
# Both margin losses make fewer mistakes than cross-entropy here, and the calibration error falls to a fraction of what it
# was.

# %%
for name, found in logits.items():
    accuracy = functional.accuracy(found, data.test.y)
    ece, nll = functional.ece(found, data.test.y), functional.nll(found, data.test.y)
    print(f"{name:14} accuracy {accuracy:.1%}   ECE {ece:.1%}   NLL {nll:.2f}")

# %%
# alt: Three reliability diagrams. Cross-entropy lies below the diagonal in most bins; MbLS and CALS-ALM follow it.
diagrams = [ReliabilityDiagram.from_logits(z, data.test.y, name) for name, z in logits.items()]
figure = ReliabilityDiagram.side_by_side(diagrams)

# %% [markdown]
# Cross-entropy is overconfident in most bins, including those that hold most of the images. For the other two, the interval
# for the true error starts at 0: 700 images cannot tell them from a perfectly calibrated network, nor from each other.
# Whether CALS-ALM beats MbLS is a question for several seeds, not for one run.
