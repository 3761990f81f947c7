"""Targets of losses: hard labels or soft targets, class weights, binary and multi-label tasks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict, get_args

import torch
from torch import Tensor
from torch.nn import functional

from calibrant import tensors
from calibrant.checks import one_of, with_shared
from calibrant.tensors import Reduction, Task, at_least_single, describe, hidden, shape_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    r"""Options of every loss.

    Attributes:
        ignore_index: Label of samples or pixels to ignore, -100 by default.
        reduction: ``"mean"`` by default, ``"sum"`` or ``"none"``.
        class_weights: Class weights :math:`w_k`, ``(K,)``: each sample has the weight of its class, and the mean is divided
            by the sum of the weights, as in ``torch.nn.CrossEntropyLoss``.
        task: ``"multiclass"`` by default: logits ``(N, K, *spatial)``. ``"binary"``: one logit z per sample, ``(N,)`` or
            ``(N, 1, *spatial)``. ``"multilabel"``: logits ``(N, L, *spatial)``, one for each of L binary labels. In the last
            two, targets are 0 or 1, or probabilities of 1, in the shape of the logits, and the loss is that of the two
            logits (0, z).
    """

    ignore_index: int
    reduction: Reduction
    class_weights: Tensor | Sequence[float] | None
    task: Task


#: Defaults of :class:`Options`.
OPTIONS: Options = {"ignore_index": -100, "reduction": "mean", "class_weights": None, "task": "multiclass"}


#: Shows :class:`Options` in the signature of a loss instead of ``**options``, and refuses unknown ones.
with_options = with_shared(Options, OPTIONS)


def without_weights(options: Options) -> Options:
    """The same options without class weights."""
    return {**options, "class_weights": None}


class Batch(NamedTuple):
    r"""Checked logits and targets of a loss.

    Attributes:
        logits: ``(N, K, *spatial)``, at least float32.
        target: Labels ``(N, *spatial)``, int64, 0 where ignored; or, for soft targets q, :math:`q_k w_k`,
            ``(N, K, *spatial)``.
        kept: ``(N, *spatial)``, False where ignored.
        reduction: How values are reduced.
        class_weights: Class weights w, ``(K,)``.
        shares: Weight of each sample in the mean, ``(N, *spatial)``, if not 1.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor
    reduction: Reduction
    class_weights: Tensor | None = None
    shares: Tensor | None = None

    @property
    def soft(self) -> bool:
        """Whether targets are soft."""
        return self.target.dim() == self.logits.dim()

    @property
    def mass(self) -> Tensor | float:
        r""":math:`\sum_k q_k w_k` of each sample, with the class dimension kept; 1 for hard labels, weighted at the end."""
        return self.target.sum(dim=1, keepdim=True) if self.soft else 1.0

    def blocks(self) -> Iterator["Batch"]:
        """The samples or pixels that are not ignored, some at a time, so that sums over them stay in cache."""
        labels = torch.zeros_like(self.kept, dtype=torch.long) if self.soft else self.target
        whole = tensors.Samples(self.logits, labels, self.kept, soft=self.target if self.soft else None)
        for block in tensors.blocks(whole, 2**18):
            logits, target, kept = block.logits, block.target if block.soft is None else block.soft, block.kept
            if block.places is not None:
                logits, target = (part.movedim(1, -1) if part.dim() > kept.dim() else part for part in (logits, target))
                logits, target, kept = logits[kept], target[kept], kept[kept]
            yield self._replace(logits=logits, target=target, kept=kept)

    def scaled(self, values: Tensor) -> Tensor:
        """A term that does not depend on labels, in proportion to the weight that soft targets give a sample."""
        return values * self.target.sum(dim=1) if self.soft else values

    def expected(self, values: Tensor) -> Tensor:
        """The expected loss of each sample, from the loss for each possible label: ``values``, ``(N, K, *spatial)``."""
        if self.soft:
            # a class of probability 0 does not count even if its loss is infinite
            return torch.where(self.target > 0, values, 0).mul(self.target).sum(dim=1)
        return values.gather(1, self.target.unsqueeze(1)).squeeze(1)

    def nll(self) -> Tensor:
        """The cross-entropy of each sample."""
        return functional.cross_entropy(self.logits, self.target, reduction="none")

    def of_true_class(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The expectation of a function of -log s_y over the true class y, for each sample."""
        if not self.soft:
            return function(self.nll())
        return self.expected(function(-self.logits.log_softmax(dim=1)))

    def probability_of(self, labels: Tensor) -> Tensor:
        """Probability of labels ``(N, *spatial)`` under the target, regardless of class weights."""
        if not self.soft:
            return (labels == self.target).to(self.logits.dtype)
        q = self.target
        if self.class_weights is not None:
            weights = tensors.per_class(self.class_weights, self.logits)
            q = torch.where(weights > 0, q / weights, 0)
        return q.gather(1, labels.unsqueeze(1)).squeeze(1)

    def minus_target(self, s: Tensor) -> Tensor:
        """The gradient of the cross-entropy, in place: s - onehot for hard labels, s sum(q) - q for soft targets."""
        if self.soft:
            return s.mul_(self.mass).sub_(self.target)
        index = self.target.unsqueeze(1)
        return s.scatter_add_(1, index, s.new_full((), -1).expand_as(index))

    def smoothed(self, alpha: Tensor | float) -> "Batch":
        """The batch with targets smoothed towards uniform; sample weights stay the same."""
        classes = self.logits.shape[1]
        ones = self.logits.new_ones(classes)
        weights = tensors.per_class(ones if self.class_weights is None else self.class_weights, self.logits)
        soft = self.target
        if not self.soft:
            soft = functional.one_hot(self.target, classes).movedim(-1, 1).to(self.logits.dtype) * weights
        return self._replace(target=(1 - alpha) * soft + alpha / classes * weights)

    def reduce(self, values: Tensor) -> Tensor:
        """Reduce ``values``, ``(N, *spatial)``, over samples that are not ignored; without any, 0 with zero gradient."""
        if self.shares is None:
            return tensors.reduce(values, self.kept, self.reduction)
        if not self.soft:
            values = values * self.shares
        if self.reduction != "mean":
            return tensors.reduce(values, self.kept, self.reduction)
        total = torch.where(self.kept, self.shares, 0).sum()
        return torch.where(self.kept, values, 0).sum() / total.where(total > 0, 1)


def batch(
    logits: Tensor,
    target: Tensor,
    *,
    num_classes: int | None = None,
    finite: bool = False,
    **options: "Unpack[Options]",
) -> Batch:
    """Check the inputs of a loss; see :class:`Options`.

    Args:
        logits: The network's outputs.
        target: Labels, or soft targets in the shape of the logits.
        num_classes: Number of classes that the loss expects.
        finite: Also check values where that forces a device synchronisation, and refuse non-finite logits.
        **options: Those of the loss.
    """
    chosen: Options = {**OPTIONS, **options}
    task = one_of("task", chosen["task"], get_args(Task))
    ignore_index, weights = chosen["ignore_index"], chosen["class_weights"]
    if task != "multiclass":
        logits, target = _as_two_classes(logits, target, task, ignore_index)
    if not (isinstance(target, Tensor) and isinstance(logits, Tensor) and target.is_floating_point()):
        found = tensors.for_training(logits, target, ignore_index, num_classes=num_classes, finite=finite)
        made = Batch(*found[:3], chosen["reduction"])
    else:
        kept = _check_distributions(target, logits, ignore_index if task != "multiclass" else None, finite=finite)
        found = tensors.for_training(
            logits, torch.where(kept, 0, ignore_index), ignore_index, num_classes=num_classes, finite=finite
        )
        target = torch.where(kept.unsqueeze(1), target.to(found.logits), 0)
        made = Batch(found.logits, target, kept, chosen["reduction"])
    return made if weights is None else _weighted(made, weights)


def _as_two_classes(logits: Tensor, target: Tensor, task: str, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The two-class form of a binary or multi-label batch: logits (0, z), and targets."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating point tensor, got {describe(logits)}; pass the network's raw outputs")
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor of 0 and 1, got {describe(target)}")
    if task == "binary":
        if logits.dim() > 1 and logits.shape[1] != 1:
            raise ValueError(
                f'with task="binary", logits must have shape (N,) or (N, 1, *spatial), got {shape_of(logits)}; for '
                'several labels pass task="multilabel", for two classes leave task out'
            )
        logits = logits.squeeze(1) if logits.dim() > 1 else logits
        target = target.squeeze(1) if target.dim() == logits.dim() + 1 and target.shape[1] == 1 else target
    elif logits.dim() < 2:
        raise ValueError(f'with task="multilabel", logits must have shape (N, L, *spatial), got {shape_of(logits)}')
    if target.shape != logits.shape:
        raise ValueError(
            f'with task="{task}", target must have the shape of the logits, {shape_of(logits)}, got {shape_of(target)}'
        )
    both = torch.stack([torch.zeros_like(logits), logits], dim=1)
    if target.dtype is torch.bool:
        target = target.long()
    if not target.is_floating_point():
        return both, target
    ignored = target == ignore_index
    return both, torch.where(ignored.unsqueeze(1), ignore_index, torch.stack([1 - target, target], dim=1))


def _check_distributions(target: Tensor, logits: Tensor, ignored: int | None, *, finite: bool) -> Tensor:
    """Refuse soft targets that are not probabilities; return where targets are kept."""
    if target.shape != logits.shape:
        raise ValueError(
            f"a floating point target holds probabilities of the classes, in the shape of the logits, {shape_of(logits)}; "
            f"got {shape_of(target)}; class labels are integers: use target.long()"
        )
    first = target[:, 0]
    kept = torch.ones_like(first, dtype=torch.bool) if ignored is None else first != ignored
    if target.numel() and (finite or target.is_cpu) and not hidden(target):
        exact = at_least_single(target)
        wrong = ~((exact.amin(dim=1) >= 0) & ((exact.sum(dim=1) - 1).abs() <= 1e-2)) & kept
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            row = exact.movedim(1, -1)[tuple(place)]
            raise ValueError(
                f"target: row {place[0]} holds {[round(x, 4) for x in row.tolist()[:5]]}{'...' if len(row) > 5 else ''}, "
                "which are not probabilities that add up to 1; class labels are integers: use target.long(); for several "
                'labels per sample pass task="multilabel"'
            )
    return kept


def weights_of(given: Tensor | Sequence[float] | None) -> Tensor | None:
    """Class weights as a tensor."""
    if given is None:
        return None
    weights = torch.as_tensor(given, dtype=torch.float32) if not isinstance(given, Tensor) else given.detach().float()
    if weights.dim() != 1 or not bool((weights >= 0).all()) or not bool(weights.isfinite().all()):
        raise ValueError(f"class_weights must be a vector of non-negative numbers, one for each class, got {given}")
    return weights


def _weighted(made: Batch, weights: Tensor | Sequence[float]) -> Batch:
    vector = torch.as_tensor(weights, dtype=made.logits.dtype, device=made.logits.device)
    classes = made.logits.shape[1]
    if vector.shape != (classes,):
        raise ValueError(f"class_weights must have one weight for each of {classes} classes, got shape {shape_of(vector)}")
    if made.soft:  # as in torch.nn.CrossEntropyLoss, the mean over soft targets divides by the number of samples
        return made._replace(target=made.target * tensors.per_class(vector, made.logits), class_weights=vector)
    return made._replace(class_weights=vector, shares=vector[made.target])
