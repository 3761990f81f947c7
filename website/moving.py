"""The picture of the first page: a network that is trained with cross-entropy, epoch by epoch."""

import io
from typing import Any

import matplotlib as mpl
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt
from PIL import Image

from calibrant import functional
from calibrant.data import create
from calibrant.losses import CrossEntropy
from calibrant.models import SmallCNN
from calibrant.plots import ReliabilityDiagram

EPOCHS, STEP = 60, 3


def frames() -> dict[str, list[Image.Image]]:
    """Train the small CNN on long-tailed digits, and draw the test set after every third epoch, wide and narrow."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = create("digits").long_tailed(20)
    x, y, test_x, test_y = data.train.x.float(), data.train.y, data.test.x.float(), data.test.y
    model, loss = SmallCNN(num_classes=10), CrossEntropy()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    curves: dict[str, list[float]] = {"accuracy": [], "ECE": [], "NLL": []}
    found: dict[str, list[Image.Image]] = {"": [], "-narrow": []}
    for epoch in range(1, EPOCHS + 1):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(test_x)
        for name, metric in (("accuracy", functional.accuracy), ("ECE", functional.ece), ("NLL", functional.nll)):
            curves[name].append(float(metric(logits, test_y)))
        if epoch % STEP == 0:
            for name, own in found.items():
                own.append(_frame(logits, test_y, curves, narrow=bool(name)))
    return found


def _frame(logits: torch.Tensor, target: torch.Tensor, curves: dict[str, list[float]], *, narrow: bool) -> Image.Image:
    """Four panels in a row, or, for phones, in two."""
    epoch, size = len(curves["ECE"]), (4.6, 5.65) if narrow else (10, 3.55)
    figure = plt.figure(figsize=size, layout="constrained")
    below = 0.25 / size[1]  # for what the diagram says under its axis
    figure.get_layout_engine().set(rect=(0, below, 1, 1 - below))
    shape: Any = {"height_ratios": [1.5, 1], "hspace": 0.12} if narrow else {"width_ratios": [1.4, 1, 1, 1]}
    grid = figure.add_gridspec(*((2, 2) if narrow else (1, 4)), **shape)
    left, *others = (figure.add_subplot(cell) for cell in grid)
    ReliabilityDiagram.from_logits(logits, target, name=f"epoch {epoch}").plot(left)
    limits = {"accuracy": (0, 1), "ECE": (0, 0.3), "NLL": (0, 2.5)}
    for ax, (name, values), colour in zip(others, curves.items(), ("#0072B2", "#D55E00", "#009E73"), strict=True):
        ax.plot(range(1, epoch + 1), values, color=colour)
        ax.plot(epoch, values[-1], "o", color=colour)
        ax.set(title=f"test {name}", xlabel="epoch", xlim=(0, EPOCHS + 1), ylim=limits[name])
        ax.spines[["top", "right"]].set_visible(False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=90)
    plt.close(figure)
    return Image.open(image).convert("RGB")


def pictures() -> dict[str, bytes]:
    """The moving picture, and its last frame for those who asked their system for less motion; both also for phones."""
    found = {}
    for name, own in frames().items():
        moving, still = io.BytesIO(), io.BytesIO()
        durations = [200] * (len(own) - 1) + [2500]
        own[0].save(moving, "WEBP", save_all=True, append_images=own[1:], duration=durations, loop=0, quality=70, method=4)
        own[-1].save(still, "PNG", optimize=True)
        found |= {f"training{name}.webp": moving.getvalue(), f"training{name}.png": still.getvalue()}
    return found
