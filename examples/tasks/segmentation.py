"""Pixels can be overconfident, too

Segmentation is classification of every pixel, and the same losses and metrics apply. A tiny network trained on four images
with cross-entropy is far too sure of its pixels; a margin on its logits, or a penalty that looks at neighbouring labels,
removes most of that.
"""

# %% [markdown]
# ## Noisy images with masks
#
# A disc and a square under heavy noise. Their edges are void, labelled 255, as annotators often leave them:
# neither losses nor metrics count these pixels.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

from calibrant import functional
from calibrant.losses import NACL, CrossEntropy, MbLS
from calibrant.plots import PixelReliability, ReliabilityDiagram

VOID, classes = 255, ["ground", "disc", "square"]


def draw(number):
    """Images (N, 1, 24, 24) and masks (N, 24, 24)."""
    row, column = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    masks = torch.zeros(number, 24, 24, dtype=torch.int64)
    for k, power in ((1, 2), (2, 8)):  # a superellipse of high power is a square
        x, y, radius = torch.rand(3, number, 1, 1) * torch.tensor([18, 18, 3]).view(3, 1, 1, 1)
        distance = (row - 3 - y).abs() ** power + (column - 3 - x).abs() ** power
        masks[distance < (3 + radius) ** power] = k
    images = torch.tensor([0.35, 0.65, 0.5])[masks].unsqueeze(1)
    images = images + 0.35 * torch.randn_like(images)
    plain = masks.unsqueeze(1).float()
    pool = nn.MaxPool2d(3, stride=1, padding=1)
    edges = pool(plain) + pool(-plain) > 0  # the largest class nearby is not the smallest
    return images, masks.masked_fill(edges.squeeze(1), VOID)


torch.manual_seed(0)
x, y = draw(4)
test_x, test_y = draw(80)
print(f"void: {(test_y == VOID).float().mean():.0%} of the pixels")

# %% [markdown]
# ## Three losses
#
# Logits are `(N, 3, 24, 24)`. MbLS limits how far apart they are. NACL is for segmentation only: it pulls the logits of a
# pixel towards the fractions of the classes around it.

# %%
losses = {
    "cross-entropy": CrossEntropy(ignore_index=VOID),
    "MbLS": MbLS(margin=5, ignore_index=VOID),
    "NACL": NACL(ignore_index=VOID),
}
logits = {}
for name, loss in losses.items():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=4, dilation=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(16, 3, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        logits[name] = model(test_x)
    one = {"logits": logits[name], "target": test_y, "ignore_index": VOID}
    miou, ece = functional.mean_iou(**one), functional.ece(**one)
    per_image = functional.per_image(functional.ece, **one)
    print(f"{name:14} mIoU {miou:.1%}   ECE of all pixels {ece:.1%}, per image {per_image:.1%}")

# %% [markdown]
# MbLS and NACL cut the calibration error to about a third or less, and neither segments better: NACL even loses mIoU. Pooled
# over all pixels, overconfident and underconfident images cancel out; the mean of the per-image errors is higher. Papers
# report one or the other, so check which before you compare.

# %%
# alt: An image, its mask, prediction, confidence and errors, for two losses: MbLS is less confident where it is wrong.
figure, axes = plt.subplots(2, 1, figsize=(7.2, 4.2), layout="constrained")
for ax, name in zip(axes, ("cross-entropy", "MbLS"), strict=True):
    one = test_x[3], logits[name][3], test_y[3]
    PixelReliability.from_logits(*one, classes, ignore_index=VOID).plot(ax)
    ax.set_title(name, pad=16)

# %%
# alt: Three reliability diagrams of pixels: cross-entropy far below the diagonal above 0.6, MbLS and NACL just below it.
void = {"ignore_index": VOID}
diagrams = [ReliabilityDiagram.from_logits(z, test_y, name, **void) for name, z in logits.items()]
figure = ReliabilityDiagram.side_by_side(diagrams)

# %% [markdown]
# Where the cross-entropy network is wrong, it is often certain. The interval of the ECE comes from resampling whole images,
# because the pixels of an image are not independent. The error bars treat them as if they were, so they are too short.
