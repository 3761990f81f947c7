from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from calibrant.checks import in_range

CACHED: Final = 2**18  # elements of a chunk, one megabyte


class GPoolCNN(nn.Module):
    """The global-pooling network of the papers' text experiments (Lin et al., 2013), as released with MbLS.

    Three convolutions over time of width 5, the first two followed by max pooling of width 5 and stride 1, the maximum over
    the whole text, and two linear layers. With 20 classes and 100-dimensional vectors it has 247,316 trained parameters.

    Args:
        num_classes: Number of outputs.
        vectors: Word vectors ``(vocabulary, dim)``, row 0 for padding; they are not trained. Without them, random vectors of
            length ``dim`` are trained.
        vocabulary: Number of words, padding included, if there are no vectors.
        dim: Length of a vector, if there are no vectors.
        width: Channels of the convolutions and of the hidden layer.
        dropout: Dropout rate of the hidden layer: 0.3 in the code that AdaFocal builds on, 0 in MbLS's.
    """

    #: Receptive field in words. With this much padding in front of the longest text of a batch, the maximum over time is
    #: that of a text padded to any length.
    padding_words: Final = 21

    def __init__(
        self,
        num_classes: int,
        *,
        vectors: Tensor | None = None,
        vocabulary: int = 20_000,
        dim: int = 100,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = in_range("dropout", dropout, 0, 1)
        if vectors is not None:
            self.embedding = nn.Embedding.from_pretrained(vectors.float(), freeze=True)
            dim = vectors.shape[1]
        else:
            self.embedding = nn.Embedding(vocabulary, dim)
            with torch.no_grad():
                self.embedding.weight[0] = 0
        self.conv1 = nn.Conv1d(dim, width, 5)
        self.conv2 = nn.Conv1d(width, width, 5)
        self.conv3 = nn.Conv1d(width, width, 5)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``(N, num_classes)`` of word indices ``(N, time)``, at least 21 of them."""
        return self.from_vectors(self.embedding(tokens))

    def from_vectors(self, x: Tensor) -> Tensor:
        """Return logits of word vectors ``(N, time, dim)``."""
        x = x.transpose(1, 2)
        x = functional.relu(running_maximum(self.conv1(x)))
        x = functional.relu(running_maximum(self.conv2(x)))
        x = functional.relu(largest_of_convolution(x, self.conv3.weight, self.conv3.bias))
        logits: Tensor = self.fc2(functional.dropout(functional.relu(self.fc1(x)), self.dropout, self.training))
        return logits


def running_maximum(x: Tensor) -> Tensor:
    """Maximum over windows of 5 along the last dimension, with stride 1."""
    maximum: Tensor = _RunningMaximum.apply(x)
    return maximum


class _RunningMaximum(torch.autograd.Function):
    """Three maxima of shifted views, of windows of 2, 4 and 5, and a gradient that goes to the first maximum.

    On the CPU both process a few texts at a time, which stay in cache: three times faster than all at once.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        maximum = x.new_empty(*x.shape[:-1], x.shape[-1] - 4)
        for own, result in _pieces(x, maximum):
            two = torch.maximum(own[..., :-1], own[..., 1:])
            four = torch.maximum(two[..., :-2], two[..., 2:])
            torch.maximum(four[..., :-1], own[..., 4:], out=result)
        ctx.save_for_backward(x, maximum)
        return maximum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        saved, maxima = ctx.saved_tensors
        length, gradient = maxima.shape[-1], torch.zeros_like(saved)
        for x, maximum, grad, total in _pieces(saved, maxima, grads[0], gradient):
            rest, here = grad.clone(), torch.empty_like(grad)
            for shift in range(4):
                torch.eq(x[..., shift : shift + length], maximum, out=here).mul_(rest)
                total[..., shift : shift + length] += here
                rest -= here
            total[..., 4:] += rest
        return gradient


def largest_of_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Maximum over time of a convolution, ``(N, channels)``."""
    if x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):  # elsewhere, dense gradients are fast
        return functional.conv1d(x, weight, bias).amax(dim=2)
    largest: Tensor = _LargestOfConvolution.apply(x, weight, bias)
    return largest


class _LargestOfConvolution(torch.autograd.Function):
    """A maximum has one place per text and channel, so that its gradients are sums over few windows, not convolutions.

    With the 250 words of a usual text this takes a third of the time, and a training step a sixth less.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        largest, place = functional.conv1d(x, weight, bias).max(dim=2)
        ctx.save_for_backward(x, weight, place)
        ctx.biased = bias is not None
        return largest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (x, weight, place), (grad,) = ctx.saved_tensors, grads
        texts, channels, length = x.shape
        words = x.transpose(1, 2).reshape(texts * length, channels)  # a row per word
        first = place + length * torch.arange(texts, device=x.device).unsqueeze(1)  # of each window
        by_channel, of_words, of_weight = grad.t().contiguous(), torch.zeros_like(words), torch.empty_like(weight)
        for shift, own in enumerate(weight.unbind(dim=2)):
            rows = first + shift
            of_weight[:, :, shift] = functional.embedding_bag(
                rows.t().contiguous(), words, mode="sum", per_sample_weights=by_channel
            )
            of_words.index_add_(0, rows.flatten(), (grad.unsqueeze(2) * own).flatten(end_dim=1))
        of_x = of_words.view(texts, length, channels).transpose(1, 2).contiguous()
        return of_x, of_weight, grad.sum(dim=0) if ctx.biased else None


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    first = tensors[0]
    texts = max(1, CACHED // first[0].numel()) if first.device.type == "cpu" else len(first)
    return zip(*(tensor.split(texts) for tensor in tensors), strict=True)
