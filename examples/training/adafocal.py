"""AdaFocal turns gamma up where the network is too sure

Focal loss with one gamma for all samples has to be tuned. AdaFocal keeps a gamma for each confidence bin and raises it after
every epoch in which the network was overconfident on the validation images in that bin.
"""

# %% [markdown]
# ## What gamma does
#
# Focal loss multiplies the cross-entropy by $(1 - p)^\gamma$, with $p$ the probability of the true class: samples that are
# already right lose weight. CalFocal, a simpler loss from the same paper, makes gamma grow with $p$ minus the accuracy of
# the validation samples at that confidence, here 0.8. Beyond that point there is nothing left to gain from a higher
# confidence.

# %%
import torch

from calibrant import functional
from calibrant.data import create
from calibrant.losses import AdaFocal, AdaptiveLoss, CrossEntropy, Focal
from calibrant.models import SmallCNN
from calibrant.plots import FocalShapes, GammaPath

# alt: Loss against the probability of the true class. CalFocal follows cross-entropy, then drops to 0 near 0.8.
axes = FocalShapes.of(accuracy=0.8, scales=(5, 20), gamma=3).plot()

# %% [markdown]
# ## Train
#
# AdaFocal depends on validation data. This split has plenty, 80 images of each digit, and only 137 training images.

# %%
data = create("digits", validation=80, test=60).long_tailed(10)
x, y = data.train.x, data.train.y
losses = {"cross-entropy": CrossEntropy(), "focal, gamma 3": Focal(gamma=3), "AdaFocal": AdaFocal()}
for name, loss in losses.items():
    torch.manual_seed(0)
    model = SmallCNN(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(60):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        if isinstance(loss, AdaptiveLoss):
            with torch.no_grad():
                loss.observe(model(data.validation.x), data.validation.y)
            loss.adapt()
    with torch.no_grad():
        logits = model(data.test.x)
    accuracy = functional.accuracy(logits, data.test.y)
    ece, nll = functional.ece(logits, data.test.y), functional.nll(logits, data.test.y)
    print(f"{name:15} accuracy {accuracy:.1%}   ECE {ece:.1%}   NLL {nll:.2f}")

# %% [markdown]
# AdaFocal halves the calibration error of cross-entropy with no gamma to choose. It does not beat a gamma of 3, which
# happens to suit this data.
#
# ## The gammas

# %%
# alt: Two panels over 60 epochs, a line per bin. Errors of confident bins settle at 0; gammas of unsure bins climb to 20.
axes = GammaPath.from_loss(losses["AdaFocal"]).plot()

# %% [markdown]
# The first epochs are noisy: the network swings from overconfident to underconfident and back. Later, the most confident
# bins are calibrated and their gammas fall towards 0, which is plain cross-entropy.
#
# The low-confidence bins stay overconfident, so their gammas are multiplied epoch after epoch until they hit the limit,
# `gamma_max=20`. An image with $p = 0.6$ then has the weight $0.4^{20}$: it no longer counts, and the error in its bin
# cannot be trained away. Look at this figure before you trust an AdaFocal run; a smaller `gamma_max` is the first
# thing to try.
