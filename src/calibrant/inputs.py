"""Predictions as users pass them: the only place that turns arrays, data frames, lists and probabilities into logits.

Every metric takes predictions as :class:`Given` describes them; they become the :class:`calibrant.tensors.Samples` that
the mathematics works on.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, get_args, overload

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import one_of, with_shared
from calibrant.errors import did_you_mean
from calibrant.tensors import (
    Samples,
    Task,
    at_least_single,
    checked,
    corner,
    describe,
    double,
    hidden,
    off_one,
    rounding,
    shape_of,
    wrong_labels,
)

P = ParamSpec("P")
T = TypeVar("T")


class SupportsArray(Protocol):
    """Anything that NumPy can turn into an array, such as a data frame."""

    def __array__(self) -> np.ndarray: ...


#: What may be passed where numbers are expected.
Array: TypeAlias = Tensor | np.ndarray | Sequence[Any] | SupportsArray


class Given(TypedDict, total=False):
    """How predictions are passed: the options that all metrics share.

    Attributes:
        ignore_index: Label of samples or pixels to ignore, -100 by default.
        probs: True if they are probabilities, False if they are logits. By default they are taken as logits, but refused if
            all rows are non-negative and add up to 1, which real logits never do.
        task: ``"multiclass"`` by default. ``"binary"``: the prediction of an event, class 1 of two, by one score per sample,
            ``(N,)`` or ``(N, 1, *spatial)``, its logit or, with ``probs=True``, its probability; two columns will do as
            well. ``"multilabel"``: L events per sample, scores and targets ``(N, L, *spatial)``. Calibration errors of
            events compare their probability with how often they happen; accuracy is that of the more probable class.
    """

    ignore_index: int
    probs: bool | None
    task: Task


#: Defaults of :class:`Given`.
GIVEN: Given = {"ignore_index": -100, "probs": None, "task": "multiclass"}


def complete(given: Given) -> Given:
    """All options, with defaults for those not given."""
    for option in given:
        if option not in GIVEN:
            raise TypeError(f"unexpected option {option!r}{did_you_mean(option, GIVEN)}")
    return {**GIVEN, **given}


def for_measuring(
    logits: Array,
    target: Array,
    ignore_index: int = -100,
    *,
    probs: bool | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
    soft: str | None = "",
) -> Samples:
    """Check ``logits`` and ``target``, all labels included, for a metric; logits keep their type. See :class:`Given`.

    ``soft`` is None where soft targets have a meaning; otherwise it says why not.
    """
    one_of("task", task, get_args(Task))
    scores = _as_scores(logits, "logits", probs=probs)
    if task == "multilabel":
        scores, num_classes = _in_place(scores, num_classes), None
    expected = _as_soft_targets(target, scores, task, ignore_index)
    if expected is not None:
        if soft is not None:
            raise TypeError(f"target holds soft targets, but this needs class labels{soft}; target.argmax(1) gives labels")
        labels = expected.argmax(dim=1).where(expected.sum(dim=1) > 0, ignore_index)
    elif task == "multilabel":
        labels = _as_events(target, logits).to(scores.device)
    else:
        labels = _as_labels(target, logits, ignore_index).to(scores.device)
    if task == "binary":
        labels = labels.squeeze(1) if labels.dim() > 1 and labels.shape == scores.shape else labels
        labels = _whole(labels) if labels.is_floating_point() else labels
    kept = labels != ignore_index if labels.shape == scores.shape[:1] + scores.shape[2:] else None
    scores = as_logits(scores, probs=probs, task="binary" if task == "multilabel" else task, kept=kept)
    if labels.dtype is torch.bool and scores.shape[1] == 2:
        labels = labels.long()
    if task == "multilabel" and labels.shape != scores.shape[:1] + scores.shape[2:]:
        raise ValueError(
            f'with task="multilabel", target must have the shape of the logits, {tuple(scores[:, 0].shape)}, '
            f"got {shape_of(labels)}"
        )
    samples = checked(scores, labels, ignore_index, num_classes, labels=True)
    return samples._replace(task=task, soft=None if expected is None else expected.to(scores))


def _in_place(scores: Tensor, labels: int | None) -> Tensor:
    """Scores of L events, ``(N, L, *spatial)``, as scores of one event in L places, ``(N, 1, L, *spatial)``."""
    if scores.dim() < 2:
        raise ValueError(f'with task="multilabel", logits must have shape (N, L, *spatial), got {shape_of(scores)}')
    if labels is not None and scores.shape[1] != labels:
        raise ValueError(f"logits have {scores.shape[1]} labels in dimension 1, but num_classes={labels}")
    return scores.unsqueeze(1)


def _as_events(target: Any, logits: Any) -> Tensor:
    """Labels 0 and 1 of several events."""
    columns, own = _columns(logits), _columns(target)
    if columns is not None and own is not None:
        if list(columns) != list(own):
            raise ValueError("logits and target must have the same columns in the same order, one for each label")
        _check_order(logits.index, target.index)
    labels = as_tensor(target, "target")
    return _whole(labels) if labels.is_floating_point() else labels


def _as_soft_targets(target: Any, scores: Tensor, task: Task, ignore_index: int) -> Tensor | None:
    """Probabilities of the classes in the shape of the logits, 0 where ignored; None if targets are labels."""
    if isinstance(target, Tensor):
        values = target
    else:
        array = _as_array(target, "target")
        if array.dtype.kind != "f" or bool(np.isnan(array).any()):
            return None
        values = _from_numpy(array, "target")
    if not values.is_floating_point():
        return None
    values = values.detach().to(scores.device)
    if task == "multiclass":
        if values.shape != scores.shape or values.dim() < 2 or values.shape[1] < 2:
            return None
        wrong = ~((values.amin(dim=1) >= 0) & (off_one(values) <= 1e-2))
        message = "target: {place} does not hold probabilities that add up to 1; labels are integers: use target.long()"
    else:
        if bool((values == values.round()).all()):
            return None
        values = values.reshape(scores.shape[:1] + scores.shape[2:]) if values.numel() == len(scores) else values
        ignored = values == ignore_index
        wrong = ~((values >= 0) & (values <= 1)) & ~ignored
        message = "target: {place} must hold 0 or 1, or the probability of 1"
        values = torch.stack([1 - values, values], dim=1).where(~ignored.unsqueeze(1), 0)
    if bool(wrong.any()):
        raise ValueError(message.format(place=_place(wrong.nonzero()[0].tolist())))
    return values


def as_logits(
    scores: Array,
    *,
    probs: bool | None = None,
    task: Task = "multiclass",
    kept: Tensor | None = None,
    name: str = "logits",
) -> Tensor:
    """Logits ``(N, K, *spatial)`` from scores as :class:`Given` describes them.

    Args:
        scores: What was passed.
        probs: As in :class:`Given`.
        task: As in :class:`Given`.
        kept: False where scores may be anything.
        name: Their name in messages.
    """
    values = _as_scores(scores, name, probs=probs)
    classes = values.shape[1] if values.dim() > 1 else 1
    if one_of("task", task, get_args(Task)) == "multilabel":
        raise ValueError('with task="multilabel", fit one calibrator for each label: calibrant.posthoc.PerLabel')
    if task == "binary" and classes != 2:
        return _of_two_classes(values, probs, kept, name)
    if classes < 2:
        raise ValueError(
            f"{name} must have shape (N, K) or (N, K, *spatial) with at least 2 classes, got {shape_of(values)}; if these "
            'are scores of class 1 of two, pass task="binary", and probs=True if they are probabilities; for a single '
            f"sample use {name}.unsqueeze(0)"
        )
    if probs:
        return _logarithms(values, None, kept)
    if probs is None and not hidden(values):
        _refuse_probabilities(values, kept, name)
    return values


def _of_two_classes(scores: Tensor, probs: bool | None, kept: Tensor | None, name: str) -> Tensor:
    """Logits of both classes from the logits, or probabilities, of class 1, ``(N,)`` or ``(N, 1, *spatial)``."""
    if scores.dim() != 1 and (scores.dim() < 2 or scores.shape[1] != 1):
        raise ValueError(
            f'with task="binary", {name} must have one score per sample, (N,) or (N, 1, *spatial), or 2 classes, '
            f"got shape {shape_of(scores)}"
        )
    scores = scores.unsqueeze(1) if scores.dim() == 1 else scores
    inside = (scores >= 0) & (scores <= 1)
    inside = inside if kept is None else inside | ~kept.unsqueeze(1)
    if not probs:
        if probs is None and scores.numel() and not hidden(scores) and bool(inside.all()):
            raise ValueError(
                f"{name} all lie between 0 and 1, as probabilities do: pass `probs=True` if they are probabilities of class "
                "1, `probs=False` if they are its logits"
            )
        return torch.cat([torch.zeros_like(scores), scores], dim=1)
    if not bool(inside.all()):
        place = (~inside).nonzero()[0].tolist()
        value = float(scores[tuple(place)])
        raise ValueError(f"probs: {_place([place[0], *place[2:]])} {_NO_PROBABILITY.format(value=value)}")
    return torch.cat([torch.log1p(-scores), scores.log()], dim=1)


def from_probs(probs: T, tolerance: float | None = None) -> T:
    """Turn probabilities into logits: their logarithms, whose softmax they are.

    Args:
        probs: ``(N, K)`` or ``(N, K, *spatial)``, adding up to 1 over dimension 1; probabilities of 0 become -infinity. A
            tensor, an array, a data frame or a list; so is the result.
        tolerance: How far a sum may be from 1; by default 0.001, or more if values look rounded to two or three digits.

    Raises:
        ValueError: If a value is not a probability; the message names the first row.

    Example:
        >>> from calibrant.functional import from_probs
        >>> [[round(z, 4) for z in row] for row in from_probs([[0.25, 0.75], [1.0, 0.0]])]
        [[-1.3863, -0.2877], [0.0, -inf]]
    """
    values = _as_scores(probs, "probs", probs=True)
    if values.dim() < 2:
        raise ValueError(
            f"probs must have shape (N, K) or (N, K, *spatial), got {shape_of(values)}; for probabilities of class 1 "
            'alone, pass probs=True and task="binary" to the metric or calibrator'
        )
    found: T = like(_logarithms(values, tolerance, None), probs)
    return found


_AS_THEY_ARE = "if these are logits, pass them directly"
_NO_PROBABILITY = "has the value {value:g}, which is not a probability; " + _AS_THEY_ARE
_NO_DISTRIBUTION = "adds up to {total:g}, not to 1; " + _AS_THEY_ARE + "; if they were rounded, divide by the sum"


def _logarithms(probs: Tensor, tolerance: float | None, kept: Tensor | None) -> Tensor:
    """Logarithms of probabilities, checked where they are ``kept``."""
    off = off_one(probs)
    if tolerance is None:
        tolerance = _tolerance(probs) if bool((off > rounding(probs)).any()) else rounding(probs)
    for wrong, message in ((~(probs.amin(dim=1) >= 0), _NO_PROBABILITY), (~(off <= tolerance), _NO_DISTRIBUTION)):
        at = wrong if kept is None else wrong & kept
        if at.any():
            place = at.nonzero()[0].tolist()
            row = double(probs.movedim(1, -1)[tuple(place)])
            raise ValueError(f"probs: {_place(place)} {message.format(value=float(row.min()), total=float(row.sum()))}")
    return at_least_single(probs).log()


def _refuse_probabilities(scores: Tensor, kept: Tensor | None, name: str) -> None:
    """Refuse probabilities passed as logits: a few rows usually rule them out, and only if not are all rows checked."""
    most = max(1, 2**20 // max(1, scores[:1].numel()))
    if kept is None:
        kept = torch.ones((), dtype=torch.bool, device=scores.device).expand(scores.shape[:1] + scores.shape[2:])
    for part, own in ((corner(scores, 2), corner(kept, 1)), (scores[:most], kept[:most])):
        if not bool(((part.amin(dim=1) >= 0) | ~own).all()) or not bool(((off_one(part) <= _tolerance(part)) | ~own).all()):
            return
    if bool(kept[:most].any()):
        raise ValueError(
            f"{name} are probabilities: no row has a negative value, and each adds up to 1; pass `probs=True`, since the "
            "softmax of probabilities gives wrong numbers (or `probs=False` if they are logits after all)"
        )


def _tolerance(scores: Tensor) -> float:
    """The same tolerance, or a larger one if values look rounded to two or three digits."""
    if scores.dtype not in (torch.float32, torch.float64) or not scores.numel():
        return rounding(scores)
    for digits in (2, 3):
        scaled = scores * 10**digits
        if bool(((scaled - scaled.round()).abs() <= 1e-3).all()):
            return max(1e-3, min(0.05, 0.5 * scores.shape[1] / 10**digits))
    return rounding(scores)


# Tensors from arrays, data frames and lists, and back


#: Shows :class:`Given` in the signature of a function instead of ``**given``, and refuses unknown options.
shown = with_shared(Given, GIVEN)


def in_kind(function: "Callable[Concatenate[Array, Array, P], Tensor]") -> "Measuring[P]":
    """Make a function of predictions and labels return a tensor for tensors, and a float for anything else."""
    measure = (
        shown(function)
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
        else function
    )

    @functools.wraps(measure)
    def answer(logits: Any, target: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        value = measure(logits, target, *args, **kwargs)
        return value if isinstance(logits, Tensor) else float(value)

    return answer


class Measuring(Protocol[P]):
    """A function of predictions and labels: a tensor for tensors, else a float."""

    __name__: str

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, logits: Tensor, target: Array, *args: P.args, **kwargs: P.kwargs
    ) -> Tensor: ...
    @overload
    def __call__(self, logits: Array, target: Array, *args: P.args, **kwargs: P.kwargs) -> float: ...


def like(result: Tensor, given: Any) -> Any:
    """A result in the type that was passed: a tensor, an array, a data frame with the same index and columns, a list."""
    if isinstance(given, Tensor):
        return result
    array = result.detach().cpu().numpy()
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(given, pandas.DataFrame):
        return pandas.DataFrame(array, index=given.index, columns=given.columns)
    if pandas is not None and isinstance(given, pandas.Series):
        return pandas.Series(array, index=given.index, name=given.name)
    return array.tolist() if isinstance(given, (list, tuple, int, float)) else array


def as_tensor(values: Array, name: str) -> Tensor:
    """A tensor, over the same memory where possible."""
    return values if isinstance(values, Tensor) else _from_numpy(_as_array(values, name), name)


def _as_scores(scores: Any, name: str, *, probs: bool | None) -> Tensor:
    values = as_tensor(scores, name)
    if values.is_floating_point():
        return values
    if values.is_complex() or values.dtype is torch.bool or (isinstance(scores, Tensor) and not probs):
        raise TypeError(f"{name} must be floating point numbers, got {describe(scores)}; pass the network's raw outputs")
    return values.double()  # integers


def _as_labels(target: Any, logits: Any, ignore_index: int) -> Tensor:
    """Class indices; names are looked up among the columns of a data frame."""
    if isinstance(target, Tensor):
        return target
    columns = _columns(logits)
    if columns is not None and hasattr(target, "index") and not isinstance(target, (list, tuple)):
        _check_order(logits.index, target.index)
    labels = _as_array(target, "target")
    labels = labels.squeeze(1) if hasattr(target, "columns") and labels.ndim == 2 and labels.shape[1] == 1 else labels
    _check_missing(labels)
    if columns is not None:
        labels = _by_name(labels, columns, ignore_index)
    if labels.dtype.kind not in "fiub":
        raise TypeError(
            f"target must be class indices, got names such as {_plain(labels.flat[0])!r}; names are looked up in the "
            "columns of logits only if those are a data frame"
        )
    values = _from_numpy(labels, "target")
    return _whole(values) if values.is_floating_point() else values


def _by_name(labels: np.ndarray, columns: Any, ignore_index: int) -> np.ndarray:
    """Positions of labels among the columns of a data frame if they have the same type, otherwise unchanged."""
    if not columns.is_unique:
        raise ValueError(f"logits have two columns named {columns[columns.duplicated()][0]!r}; columns are classes")
    found: np.ndarray = columns.get_indexer(labels)
    numbers = labels.dtype.kind in "fiub"
    ignored = labels == ignore_index if numbers else np.zeros(len(labels), dtype=bool)
    found = np.where(ignored, ignore_index, found)
    if ((found >= 0) | ignored).all():
        return found
    names = [str(name) for name in columns]
    called = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    if numbers and not all(name.strip().lstrip("-").replace(".", "", 1).isdigit() for name in names):
        return labels  # numbers where columns have names: positions
    if numbers and names == [str(k) for k in range(len(names))]:
        return labels
    row = int(np.flatnonzero((found < 0) & ~ignored)[0])
    cure = (
        "are these labels names or positions? For names, give them the type of the columns; for positions, pass "
        "logits.to_numpy()"
        if numbers
        else "labels are names of columns, or their positions, 0 to K - 1"
    )
    raise ValueError(
        f"target: row {row} has label {_plain(labels[row])!r}, but the columns of logits are named {called}; {cure}"
    )


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def _check_order(rows: Any, others: Any) -> None:
    """Refuse labels of the same rows in another order, which is surely a mistake."""
    if rows is others or rows.equals(others) or len(rows) != len(others):
        return
    if rows.is_unique and others.is_unique and rows.isin(others).all():
        raise ValueError(
            "logits and target have the same index in different orders; align them with target.loc[logits.index]"
        )


def _check_missing(labels: np.ndarray) -> None:
    if labels.dtype.kind == "f" or labels.dtype == object:
        missing = labels != labels if labels.dtype.kind == "f" else np.array([v is None or v != v for v in labels.flat])  # noqa: PLR0124
        if missing.any():
            row = int(np.flatnonzero(missing)[0])
            raise ValueError(f"target: row {row} has no label; drop the row, or label it ignore_index")


def _whole(labels: Tensor) -> Tensor:
    """Integer labels stored in another dtype."""
    if bool((labels != labels.round()).any()):
        raise TypeError(wrong_labels(labels))
    return labels.long()


def column_names(values: Any) -> list[Any] | None:
    """Names of the columns of a data frame, None for anything else."""
    columns = _columns(values)
    return None if columns is None else list(columns)


def _columns(values: Any) -> Any:
    """The columns of a pandas data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return values.columns if pandas is not None and isinstance(values, pandas.DataFrame) else None


def _as_array(values: Any, name: str) -> np.ndarray:
    if isinstance(values, (list, tuple)) and any(isinstance(value, Tensor) for value in values):
        raise TypeError(f"{name} is a {type(values).__name__} of tensors; join them with torch.cat or torch.stack")
    try:
        array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    except ValueError as error:
        raise TypeError(f"{name} cannot be converted to an array: {error}") from error
    if array.dtype != object:
        return np.asarray(array)
    try:  # numbers stored as objects
        wanted = np.result_type(*{type(value) for value in array.flat}) if array.size else np.dtype(np.float64)
        return array.astype(wanted if wanted.kind in "fiub" else object)
    except (TypeError, ValueError):
        return np.asarray(array)


def _from_numpy(array: np.ndarray, name: str) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, got an array of {array.dtype}")
    if array.dtype.kind == "u":
        array = array.astype(np.int64)
    if array.dtype.itemsize > 8:  # a long double
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        if not array.flags.writeable:
            warnings.simplefilter("ignore")  # about read-only memory, which nothing writes to
        return torch.from_numpy(array)


def _place(place: list[int]) -> str:
    return f"row {place[0]}" + (f" at pixel {tuple(place[1:])}" if len(place) > 1 else "")
