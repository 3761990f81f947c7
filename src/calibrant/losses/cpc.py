import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from calibrant.checks import in_range
from calibrant.losses.base import Loss, reduce_finite, with_gradient
from calibrant.losses.targets import Batch, Options, batch, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options
def cpc_loss(
    logits: Tensor,
    target: Tensor,
    *,
    discrimination: float = 10.0,
    exclusion: float = 1.0,
    **options: "Unpack[Options]",
) -> Tensor:
    r"""Cross-entropy plus pairwise constraints (CPC, Cheng and Vasconcelos 2022).

    .. math::
        -\log s_y - \frac{w_1}{K - 1} \sum_{j \ne y} \log \sigma(l_y - l_j)
        - \frac{w_2}{(K - 1)(K - 2)} \sum_{i, j \ne y} \frac12 \log \sigma(l_i - l_j)

    The second term (binary discrimination, :math:`w_1`) separates the true class from every other class; the third (binary
    exclusion, :math:`w_2`) pulls the other classes together and vanishes for K = 2. As in the code released with CALS, the
    double sum includes i = j, a constant. It takes O(N K^2) time but O(N K) memory. For soft targets,
    the expected loss over labels drawn from them.

    Example:
        >>> import torch
        >>> from calibrant.functional import cpc_loss
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(cpc_loss(logits, target)), 4)
        3.8695
    """
    in_range("discrimination", discrimination, 0)
    in_range("exclusion", exclusion, 0)
    given = batch(logits, target, **options)
    classes = given.logits.shape[1]
    discrimination = discrimination / (classes - 1)
    exclusion = exclusion / ((classes - 1) * max(1, classes - 2))
    if given.soft:
        values = _with_expected_pairs(given, discrimination, exclusion)
    else:
        values = _with_pairs(given.logits, given.target.unsqueeze(1), discrimination, exclusion)
    return reduce_finite(values, given)


def _with_pairs(logits: Tensor, target: Tensor, discrimination: float, exclusion: float) -> Tensor:
    """The three terms for each sample, with an explicit gradient: autograd would need twice the memory."""
    with torch.no_grad():
        values = functional.cross_entropy(logits, target.squeeze(1), reduction="none")
        gradient = logits.softmax(dim=1).scatter_add_(1, target, logits.new_full((), -1).expand_as(target))
        if logits.shape[1] > 2 and exclusion:
            value, slope = _pairs_of_others(logits, target)
            values.add_(value, alpha=exclusion)
            gradient.add_(slope, alpha=exclusion)
            del slope
        margins = (logits - logits.gather(1, target)).scatter_(1, target, -torch.inf)  # l_j - l_y, leaving out j = y
        # The default threshold, beyond which softplus(x) returns x, would be visible in float64.
        values.add_(functional.softplus(margins, threshold=40).sum(dim=1), alpha=discrimination)
        slope = margins.sigmoid_().mul_(discrimination)
        gradient.add_(slope).scatter_add_(1, target, -slope.sum(dim=1, keepdim=True))
    return with_gradient(logits, values, gradient)


def _pairs_of_others(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sum over wrong classes i and j of softplus(l_j - l_i) / 2 for each sample, and its gradient.

    Pairs (i, j) and (j, i) together give :math:`|x|/2 + \log(1 + e^{-|x|})` of :math:`x = l_i - l_j`, with derivative
    :math:`\tanh(x/2)/2`. All pairs at once would take K times the memory of the logits. They are summed in blocks: of
    many samples when there are few classes, of a part of one sample's pairs when there are many. The compiler needs no
    blocks: it fuses the pairs into the sums.
    """
    last = logits.movedim(1, -1)
    samples = last.clone(memory_format=torch.contiguous_format).flatten(0, -2)
    labels = target.movedim(1, -1).flatten(0, -2)
    size, classes = samples.shape
    values = samples.new_zeros(size)
    others = torch.arange(classes - 1, device=logits.device)
    pairs = size * classes**2 if torch.compiler.is_compiling() else max(2**16, samples.numel() // 8)
    rows = min(size, max(1, pairs // classes**2))
    columns = min(classes, max(1, pairs // (max(1, rows) * classes)))
    for sample, label, value in zip(samples.split(rows), labels.split(rows), values.split(rows), strict=True):
        wrong = others + (others >= label)  # all classes but the true one
        logit = sample.gather(1, wrong)
        sample.zero_()  # from here on it holds the slopes
        for some, index in zip(logit.split(columns, dim=1), wrong.split(columns, dim=1), strict=True):
            x = some.unsqueeze(2) - logit.unsqueeze(1)
            sample.scatter_(1, index, (x / 2).tanh_().sum(dim=2) / 2)
            x.abs_()
            value.add_(x.sum(dim=(1, 2)) / 4).add_(x.neg_().exp_().log1p_().sum(dim=(1, 2)) / 2)
    return values.view(last.shape[:-1]), samples.view(last.shape).movedim(-1, 1)


def _with_expected_pairs(given: Batch, discrimination: float, exclusion: float) -> Tensor:
    r"""Expectation of :func:`_with_pairs` over labels y drawn from q, in blocks of samples.

    With :math:`p_{ij} = |x|/2 + \log(1 + e^{-|x|})`, :math:`x = l_i - l_j`, the pairs that leave out y add up to
    :math:`\frac12 \sum_{ij} p_{ij} - \sum_j p_{yj} + \frac12 p_{yy}`.
    """
    with torch.no_grad():
        nll = given.nll()
        gradient = given.minus_target(given.logits.softmax(dim=1))
        last, q = (part.movedim(1, -1).flatten(0, -2) for part in (given.logits, given.target))
        slopes, values = torch.empty_like(last), last.new_empty(len(last))
        classes = last.shape[1]
        rows = max(1, max(2**16, last.numel() // 8) // classes**2)
        exclusion = exclusion if classes > 2 else 0.0
        for logit, own, value, slope in zip(*(part.split(rows) for part in (last, q, values, slopes)), strict=True):
            mass = own.sum(dim=1, keepdim=True)
            x = logit.unsqueeze(2) - logit.unsqueeze(1)
            others = functional.softplus(-x, threshold=40).diagonal_scatter(x.new_zeros(x.shape[:2]), dim1=1, dim2=2)
            push = (-x).sigmoid().diagonal_scatter(x.new_zeros(x.shape[:2]), dim1=1, dim2=2)  # of l_j above l_y
            value.copy_(discrimination * (own.unsqueeze(2) * others).sum(dim=(1, 2)))
            weighted = own.unsqueeze(2) * push
            slope.copy_(discrimination * (weighted.sum(dim=1) - weighted.sum(dim=2)))
            if exclusion:
                pairs = x.abs() / 2 + (-x.abs()).exp().log1p()
                half = (x / 2).tanh() / 2
                value.add_(exclusion * (mass.squeeze(1) * pairs.sum(dim=(1, 2)) / 2 - (own * pairs.sum(dim=2)).sum(dim=1)))
                value.add_(exclusion * mass.squeeze(1) * math.log(2) / 2)
                slope.add_(exclusion * ((mass - own) * half.sum(dim=2) - (half * own.unsqueeze(1)).sum(dim=2)))
        shape = given.logits.movedim(1, -1).shape
        values = nll + values.view(shape[:-1])
        gradient.add_(slopes.view(shape).movedim(-1, 1))
    return with_gradient(given.logits, values, gradient)


class CPC(Loss):
    """Cross-entropy plus pairwise constraints; see :func:`cpc_loss`.

    Args:
        discrimination: Weight of the binary discrimination term (10 in CALS Appendix C, 0.1 in its released code).
        exclusion: Weight of the binary exclusion term.
        **options: Options of all losses: ignore_index, reduction, class_weights, task.

    Example:
        >>> import torch
        >>> from calibrant.losses import CPC
        >>> logits, target = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1])
        >>> round(float(CPC()(logits, target)), 4)
        3.8695
    """

    @with_options
    def __init__(
        self,
        *,
        discrimination: float = 10.0,
        exclusion: float = 1.0,
        **options: "Unpack[Options]",
    ) -> None:
        super().__init__(**options)
        self.discrimination = in_range("discrimination", discrimination, 0)
        self.exclusion = in_range("exclusion", exclusion, 0)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return cpc_loss(logits, target, discrimination=self.discrimination, exclusion=self.exclusion, **self.options)
