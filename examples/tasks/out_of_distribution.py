"""Good calibration does not mean good OOD detection

Shown something it was not trained on, a network should be less sure than usual. Calibration on the test set says nothing
about that, since nothing there is unknown. Out-of-distribution (OOD) detection has to be measured separately, by the area
under the ROC curve (AUROC).
"""

# %% [markdown]
# ## Known and unknown
#
# Train on the digits 0 to 7. Unknown to the network: the digits 8 and 9, and images of pure noise.

# %%
import matplotlib.pyplot as plt
import torch

from calibrant import functional, stats
from calibrant.data import create, unknown
from calibrant.losses import CrossEntropy, LabelSmoothing, MbLS
from calibrant.models import SmallCNN
from calibrant.plots import ROC

data = create("digits")
seen, tested = data.train.y < 8, data.test.y < 8
x, y = data.train.x[seen], data.train.y[seen]
known, target = data.test.x[tested], data.test.y[tested]
others = {"digits 8 and 9": data.test.x[~tested], "noise": unknown("noise", data, limit=500).x}

# %% [markdown]
# ## Three losses
#
# On the digits they know, all three are accurate. Cross-entropy and MbLS are well calibrated, label smoothing is
# underconfident.

# %%
losses = {"cross-entropy": CrossEntropy(), "label smoothing": LabelSmoothing(), "MbLS": MbLS()}
pairs = {kind: {} for kind in others}
for name, loss in losses.items():
    torch.manual_seed(0)
    model = SmallCNN(num_classes=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(20):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        logits = model(known)
        for kind, images in others.items():
            pairs[kind][name] = (logits, model(images))
    accuracy, ece = functional.accuracy(logits, target), functional.ece(logits, target)
    confidence = logits.softmax(1).amax(1).mean()
    print(f"{name:16} accuracy {accuracy:.1%}   confidence {confidence:.1%}   ECE {ece:.1%}")

# %% [markdown]
# ## Detection
#
# The score is the entropy of the softmax; the area under the curve is the probability that an unknown image has a higher
# entropy than a known one. FPR95 is the fraction of unknown images accepted at the threshold that accepts 95% of the known
# ones.

# %%
for kind, own in pairs.items():
    for name, pair in own.items():
        area, missed = stats.auroc_interval(*pair), functional.ood_fpr95(*pair)
        confidence = pair[1].softmax(1).amax(1).mean()
        print(f"{kind:15} {name:16} area {area}, FPR95 {missed:.0%}, confidence {confidence:.0%}")

# %%
# alt: ROC curves for unseen digits and for noise: label smoothing and MbLS lie together, cross-entropy clearly below both.
figure, axes = plt.subplots(1, 2, figsize=(7, 4.6), layout="constrained")
for ax, (kind, own) in zip(axes, pairs.items(), strict=True):
    ROC.from_logits(own, title=kind).plot(ax)

# %% [markdown]
# Calibration and detection are different things. Cross-entropy is calibrated on known digits and the worst at noticing
# unknown ones: it gives digits it has never seen a mean confidence of about 90%. Label smoothing is off by several points on
# the test set, but its doubts are in the right places. More than half of the unknown images get past the cross-entropy
# network, a fifth to a third get past the others: none of them would be safe as the only guard.
#
# This is one seed on small images. `calibrant ood` does the same for finished runs, with other scores and after temperature
# scaling.
