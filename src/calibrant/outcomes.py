"""From logits to outcomes: how probable each prediction was, and whether it came true."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant import tensors
from calibrant.tensors import Block, Samples


class Softmax(NamedTuple):
    """The softmax of a block, not yet normalised: ``exponentials / total``.

    Attributes:
        largest: Largest logit, with the class dimension kept.
        exponentials: exp(logits - largest), in the shape of the logits; may be overwritten.
        total: Their sum over classes, with the dimension kept; 1 / total is the confidence of the predicted class.
    """

    largest: Tensor
    exponentials: Tensor
    total: Tensor


class Outcomes(NamedTuple):
    """Confidence and correctness of the predicted class, for each sample or pixel that is not ignored.

    Of events, their probability, and whether they happened. With soft targets, ``correct`` is a probability.
    """

    confidence: Tensor
    correct: Tensor

    def of_predicted_class(self) -> "Outcomes":
        """From outcomes of events those of the more probable class, which is the other one up to one half."""
        happens = self.confidence > 0.5
        return Outcomes(torch.where(happens, self.confidence, 1 - self.confidence), happens == self.correct)


def softmax(block: Block, largest: Tensor | None = None) -> Softmax:
    """The unnormalised softmax of a block; ``largest`` may pass the largest logits if they are already known.

    Raises:
        ValueError: If logits that are not ignored have no softmax.
    """
    if largest is None:
        largest = block.logits.amax(dim=1, keepdim=True)
    exponentials = (block.logits - largest).exp_()
    total = exponentials.sum(dim=1, keepdim=True)
    check(block, total.squeeze(1).isnan())
    return Softmax(largest, exponentials, total)


def correct(block: Block, largest: Tensor, total: Tensor) -> Tensor:
    """Where the prediction, the first class with the largest logit, is the true class; with soft targets, how probably.

    Comparing the true logit with the largest costs a fraction of ``argmax``. It is wrong only if a class before the true
    one has the same logit, which requires a confidence of at most one half; those few samples are checked again.
    """
    if block.soft is not None:
        return block.soft.gather(1, block.logits.argmax(dim=1, keepdim=True)).squeeze(1)
    right = (block.logits.gather(1, block.target.unsqueeze(1)) == largest).squeeze(1)
    doubtful = right & (total.squeeze(1) >= 2)
    if doubtful.any():
        right[doubtful] = block.logits.movedim(1, -1)[doubtful].argmax(dim=-1) == block.target[doubtful]
    return right


def top_label(samples: Samples) -> Outcomes:
    """Outcomes of the predicted class of all samples, in their order."""
    return _of_blocks(samples, lambda block, s: (1 / s.total.squeeze(1), correct(block, s.largest, s.total)))


def judged(samples: Samples) -> Outcomes:
    """What calibration is about: events if they were predicted, otherwise the predicted class."""
    return _of_blocks(samples, _event) if samples.of_event else top_label(samples)


def _event(block: Block, s: Softmax) -> tuple[Tensor, Tensor]:
    happened = block.target == 1 if block.soft is None else block.soft[:, 1]
    return s.exponentials[:, 1] / s.total.squeeze(1), happened


@torch.no_grad()
def _of_blocks(samples: Samples, outcome: Callable[[Block, Softmax], tuple[Tensor, Tensor]]) -> Outcomes:
    confidences, rights = [], []
    for block in tensors.blocks(samples):
        confidence, right = outcome(block, softmax(block))
        confidences.append(block.pick(confidence))
        rights.append(block.pick(right))
    logits = samples.logits
    none = logits.new_zeros(0, dtype=logits.dtype if logits.dtype == torch.float64 else torch.float32)
    found = Outcomes(torch.cat([none, *confidences]), torch.cat([none.bool(), *rights]))
    # What follows is computed in float64, which this device does not support.
    return Outcomes(*(part.cpu() for part in found)) if logits.device.type == "mps" else found


def check(block: Block, wrong: Tensor) -> None:
    """Refuse a block whose logits have no softmax where ``wrong``, unless they are ignored.

    These are NaN, +infinity, and rows of -infinity alone; a single -infinity is a probability of 0.
    """
    wrong = wrong & block.kept
    if wrong.any():
        first = block.logits.movedim(1, -1)[wrong][0]
        raise ValueError(
            f"logits must have a softmax, but {int(wrong.sum())} of the {wrong.numel()} samples checked so far have none: "
            f"{int(first.isnan().sum())} of the first one's {len(first)} logits are NaN, {int(first.isposinf().sum())} are "
            "+infinity; find them with logits.softmax(1).isnan().any(1)"
        )
