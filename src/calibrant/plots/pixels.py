from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from calibrant import inputs
from calibrant.inputs import Array
from calibrant.plots.base import Figure, new_axes, panels, styled

#: Colours of ignored and of correct pixels.
VOID, RIGHT = "black", "#dbe5ee"


@dataclass(frozen=True, repr=False)
class PixelReliability(Figure):
    """A segmented image with its labels, the prediction, the confidence and the errors.

    Attributes:
        image: ``(H, W, 3)`` in [0, 1].
        label: ``(H, W)``, -1 where ignored.
        prediction: ``(H, W)``.
        confidence: ``(H, W)``.
        classes: Names of the classes; may be empty.

    Example:
        >>> from calibrant.plots import PixelReliability
        >>> import torch
        >>> logits = torch.tensor([4.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 4)
        >>> target = torch.tensor([[[0, 0, 0, 1], [0, 0, 0, 1]]])
        >>> figure = PixelReliability.from_logits(torch.rand(3, 2, 4), logits[0], target[0])
        >>> figure.prediction.tolist(), round(float(figure.confidence.mean()), 3)
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 0.982)
    """

    image: np.ndarray = field(repr=False)
    label: np.ndarray = field(repr=False)
    prediction: np.ndarray = field(repr=False)
    confidence: np.ndarray = field(repr=False)
    classes: list[str]

    @classmethod
    def from_logits(
        cls,
        image: Array,
        logits: Array,
        target: Array,
        classes: list[str] | None = None,
        *,
        ignore_index: int = -100,
        probs: bool | None = None,
    ) -> "PixelReliability":
        """From one image ``(3, H, W)`` or ``(1, H, W)`` in [0, 1], its logits ``(K, H, W)`` and labels ``(H, W)``.

        With ``probs=True`` these are probabilities; see :class:`calibrant.inputs.Given`.
        """
        image, logits, target = (
            inputs.as_tensor(part, name) for part, name in ((image, "image"), (logits, "logits"), (target, "target"))
        )
        if image.dim() != 3 or logits.dim() != 3 or image.shape[1:] != logits.shape[1:]:
            raise ValueError(
                f"image must be (3, H, W) and logits (K, H, W) of the same size, got {tuple(image.shape)} and "
                f"{tuple(logits.shape)}"
            )
        samples = inputs.for_measuring(logits[None], target[None], ignore_index, probs=probs)
        confidence, prediction = samples.logits.float().softmax(dim=1).max(dim=1)
        label = samples.target.where(samples.kept, -1)
        shown = image.detach().cpu().float().clamp(0, 1).expand(3, -1, -1).movedim(0, -1)
        label, prediction, confidence = (part[0].cpu() for part in (label, prediction, confidence))
        return cls(shown.numpy(), label.numpy(), prediction.numpy(), confidence.numpy(), classes or [])

    def to_dict(self) -> dict[str, Any]:
        """The data, as nested lists."""
        arrays = {name: getattr(self, name).tolist() for name in ("image", "label", "prediction", "confidence")}
        return {**arrays, "classes": self.classes}

    @styled
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the image, the labels, the prediction, the confidence, and the errors, brightest where most confident."""
        height, width = self.confidence.shape
        ax = new_axes(7.2, 1.45 * height / width + 0.3) if ax is None else ax
        shown = panels(ax, 1, 5, gap=0.02)
        kept = self.label >= 0
        wrong = (self.prediction != self.label) & kept
        number = 1 + int(max(self.prediction.max(), self.label.max()))
        palette = ListedColormap(mpl.colormaps["tab20"](np.arange(max(number, 1)) % 20)).with_extremes(bad=VOID)
        labels = np.ma.masked_where(~kept, self.label)
        error = np.ma.masked_where(~kept, np.where(wrong, self.confidence, -1.0))
        accuracy = 1 - wrong.sum() / max(1, kept.sum())
        surest = self.confidence[kept].mean() if kept.any() else float("nan")
        pictures: list[tuple[str, Any, dict[str, Any]]] = [
            ("image", self.image, {}),
            ("label", labels, {"cmap": palette, "vmin": -0.5, "vmax": number - 0.5}),
            (
                f"prediction, {100 * accuracy:.1f}% correct",
                self.prediction,
                {"cmap": palette, "vmin": -0.5, "vmax": number - 0.5},
            ),
            (f"confidence, mean {100 * surest:.1f}%", self.confidence, {"cmap": "viridis", "vmin": 0, "vmax": 1}),
            (
                "wrong, coloured by confidence",
                error,
                {"cmap": mpl.colormaps["YlOrRd"].with_extremes(bad=VOID, under=RIGHT), "vmin": 0, "vmax": 1},
            ),
        ]
        for panel, (title, picture, options) in zip(shown, pictures, strict=True):
            drawn = panel.imshow(picture, interpolation="nearest", **options)
            panel.set_title(title, fontsize=6.5)
            panel.set_anchor("N")
            panel.set_xticks([])
            panel.set_yticks([])
            if title.startswith(("confidence", "wrong")):
                bar = ax.figure.colorbar(drawn, cax=panel.inset_axes((0.05, -0.12, 0.9, 0.05)), orientation="horizontal")
                bar.ax.tick_params(labelsize=5.5)
        present = np.unique(np.concatenate([self.label[kept].ravel(), self.prediction.ravel()])).tolist()
        if self.classes:
            handles = [mpl.patches.Patch(color=palette(k), label=self.classes[k]) for k in present]
            handles += [] if kept.all() else [mpl.patches.Patch(color=VOID, label="(void)")]
            shown[0].legend(
                handles=handles, loc="upper left", bbox_to_anchor=(0, -0.05), ncols=min(6, len(handles)), fontsize=5.5
            )
        return ax
