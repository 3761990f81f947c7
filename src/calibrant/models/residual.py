"""Residual networks for small images, as the papers used them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size up to its stride, without bias, as a batch norm follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Basic(nn.Module):
    """Two convolutions, each with its batch norm, and a shortcut.

    Args:
        inputs: Input channels.
        width: Output channels.
        stride: Stride of the first convolution.
        projection: Whether a shortcut that changes shape is a 1 x 1 convolution; otherwise it skips pixels and pads channels
            with zeros (He et al., option A).
    """

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, *, projection: bool = True) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width, width), nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - inputs
        changes = stride != 1 or inputs != width
        self.shortcut = (
            nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width)) if changes and projection else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        out = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride != 1 or self.more:
            x = functional.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)
            )
        return functional.relu(out + x)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, the last with four times as many channels, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1, self.norm1 = conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the convolutions to the shortcut."""
        out = functional.relu(self.norm1(self.conv1(x)))
        out = functional.relu(self.norm2(self.conv2(out)))
        return functional.relu(self.norm3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A 3 x 3 stem without pooling, stages of residual blocks, average pooling, one linear layer.

    Args:
        num_classes: Number of outputs.
        block: Builds a block from input channels, width and stride.
        depths: Blocks of each stage.
        widths: Width of each stage; every stage but the first halves the image.
        expansion: Output channels of a block, relative to its width.
        stem: Channels of the first convolution.
        channels: Channels of the images.
        pool: Side of the output of average pooling.
    """

    def __init__(
        self,
        num_classes: int,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        *,
        stem: int,
        channels: int = 3,
        pool: int = 1,
        projection: bool = True,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(channels, stem), nn.BatchNorm2d(stem), nn.ReLU())
        stages, inputs = [], stem
        options = {"projection": projection} if block is Basic else {}
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                blocks.append(block(inputs, width, 2 if i and not j else 1, **options))
                inputs = block.expansion * width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(pool)
        self.head = nn.Linear(inputs * pool**2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(N, num_classes)`` of images ``(N, channels, H, W)``."""
        result: Tensor = self.head(self.pool(self.stages(self.stem(x))).flatten(1))
        return result


def resnet20(num_classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-20 for 32 x 32 (He et al., CVPR 2016, Section 4.2)."""
    return _he_normal(ResNet(num_classes, Basic, [3] * 3, [16, 32, 64], stem=16, channels=channels, projection=False))


def resnet32(num_classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-32 for 32 x 32 (He et al., CVPR 2016, Section 4.2), the standard one for long-tailed CIFAR."""
    return _he_normal(ResNet(num_classes, Basic, [5] * 3, [16, 32, 64], stem=16, channels=channels, projection=False))


def resnet50(num_classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-50 with a 3 x 3 stem, for 32 x 32."""
    return ResNet(num_classes, Bottleneck, [3, 4, 6, 3], [64, 128, 256, 512], stem=64, channels=channels)


def resnet110(num_classes: int, *, channels: int = 3) -> ResNet:
    """The papers' "ResNet-110": bottleneck blocks [3, 4, 26, 3], 45.9 million parameters, not He et al.'s of 1.7 million."""
    return ResNet(num_classes, Bottleneck, [3, 4, 26, 3], [64, 128, 256, 512], stem=64, channels=channels)


def tiny_resnet50(num_classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-50 for Tiny-ImageNet's 64 x 64: pooled to 2 x 2, so that the last layer has 8192 inputs."""
    net = ResNet(num_classes, Bottleneck, [3, 4, 6, 3], [64, 128, 256, 512], stem=64, channels=channels, pool=2)
    return _he_normal(net)


def wide_resnet26_10(num_classes: int, *, channels: int = 3) -> ResNet:
    """Wide-ResNet-26-10 with the activation after each sum, no dropout, as the papers trained it."""
    return _he_normal(ResNet(num_classes, Basic, [4] * 3, [160, 320, 640], stem=16, channels=channels))


def _he_normal(network: ResNet) -> ResNet:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class _Dense(nn.Module):
    """A bottleneck whose output is concatenated to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, 4 * growth, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), conv(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([self.conv2(functional.relu(self.norm2(out))), x], dim=1)


def densenet121(num_classes: int, *, channels: int = 3, growth: int = 32) -> nn.Sequential:
    """DenseNet-121 with a 3 x 3 stem, for 32 x 32 (Huang et al., CVPR 2017)."""
    width = 2 * growth
    layers: list[nn.Module] = [conv(channels, width)]
    for i, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(_Dense(width, growth))
            width += growth
        if i < 3:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), conv(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]
    return nn.Sequential(*layers)
