from typing import cast

from torch import Tensor, nn


class SmallCNN(nn.Sequential):
    """Three convolutions and two linear layers, for small images that need no large network.

    Args:
        num_classes: Number of outputs.
        channels: Channels of the images.
        width: Channels of the first convolution; the others have twice as many.
    """

    def __init__(self, num_classes: int, *, channels: int = 1, width: int = 16) -> None:
        super().__init__(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * width, 4 * width),
            nn.ReLU(),
            nn.Linear(4 * width, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(N, num_classes)`` of images ``(N, channels, H, W)``, at least 8 x 8."""
        return cast("Tensor", super().forward(x))
