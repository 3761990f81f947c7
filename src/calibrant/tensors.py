"""User input becomes what the mathematics needs: the only place that converts, validates and masks.

Logits have shape ``(N, K, *spatial)`` with the classes in dimension 1, targets have shape ``(N, *spatial)``. Losses take
tensors of logits; everything that measures also takes arrays, data frames and lists, and probabilities and single scores as
well as logits (:class:`Given`).

Nothing is flattened or filtered on the way: dropping ignored pixels would make shapes depend on data (a device
synchronisation, a graph break in ``torch.compile``), so they are carried along and masked out of every sum.
"""

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    overload,
)

import numpy as np
import torch
from torch import Tensor

from calibrant.checks import one_of
from calibrant.errors import did_you_mean

Reduction = Literal["mean", "sum", "none"]
Task = Literal["multiclass", "binary"]
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class SupportsArray(Protocol):
    """Anything that NumPy can turn into an array, such as a data frame."""

    def __array__(self) -> np.ndarray: ...


#: What may be passed where numbers are expected.
Array: TypeAlias = Tensor | np.ndarray | Sequence[Any] | SupportsArray


class Given(TypedDict, total=False):
    """How predictions are given: options of everything that measures them.

    Attributes:
        ignore_index: Label of samples or pixels to ignore, -100 by default.
        probs: True if they are probabilities, False if they are logits. By default they are assumed to be logits, but
            refused if all rows are non-negative and add up to 1, as no network's logits do.
        task: ``"binary"`` if there may be one score for each sample, ``(N,)`` or ``(N, 1, *spatial)``: the logit, or with
            ``probs=True`` the probability, of class 1 of two. ``"multiclass"`` by default.
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


class Samples(NamedTuple):
    """Checked logits and labels of samples or pixels.

    Attributes:
        logits: ``(N, K, *spatial)``, at least float32.
        target: ``(N, *spatial)``, int64, 0 at ignored places so that it can always be used as an index.
        kept: ``(N, *spatial)``, False at ignored places.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor

    def labels(self, ignore_index: int = -100) -> Tensor:
        """The labels as passed, ``ignore_index`` where they are ignored."""
        return self.target.where(self.kept, ignore_index)


class Block(NamedTuple):
    """Some samples that are processed at once.

    Attributes:
        logits: ``(n, K)`` or ``(n, K, pixels)``, at least float32.
        target: ``(n,)`` or ``(n, pixels)``, as in :class:`Samples`.
        kept: False at ignored places.
        places: Where the flattened ``kept`` is True, or None if it is everywhere.
    """

    logits: Tensor
    target: Tensor
    kept: Tensor
    places: Tensor | None

    def pick(self, values: Tensor) -> Tensor:
        """Those of ``values``, one per sample, that are not ignored, as a vector."""
        return values.flatten() if self.places is None else values.flatten()[self.places]


# Losses: tensors of logits


def for_training(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    *,
    num_classes: int | None = None,
    finite: bool = False,
) -> Samples:
    """Check ``logits`` and ``target`` for a loss, which computes in at least float32.

    Checking values means waiting for the device, so labels are checked on the CPU, and everywhere if ``finite`` is set,
    which also refuses logits that are not finite, or probabilities.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a floating point tensor, got {_describe(logits)}; pass the network's raw outputs")
    if not isinstance(target, Tensor):
        raise TypeError(_wrong_labels(target))
    if logits.dim() < 2:
        raise ValueError(
            f"logits must have shape (N, K) or (N, K, *spatial), got {_shape(logits)}; for a single sample use "
            "logits.unsqueeze(0), for a binary network with one output z use torch.stack([torch.zeros_like(z), z], dim=1)"
        )
    samples = _checked(logits, target, ignore_index, num_classes, labels=finite)
    if finite:
        _check_values(samples.logits, samples.kept)
    return samples._replace(logits=_at_least_single(samples.logits))


def _checked(logits: Tensor, target: Tensor, ignore_index: int, num_classes: int | None, *, labels: bool) -> Samples:
    """Shapes and types are always checked, labels if ``labels`` is set or they are on the CPU."""
    if target.dtype is torch.bool or target.is_floating_point() or target.is_complex():
        raise TypeError(_wrong_labels(target))
    size, classes, *spatial = logits.shape
    if classes < 2:
        raise ValueError(
            f"logits must have at least 2 classes in dimension 1, got shape {_shape(logits)}; for a binary network with one "
            "output z use torch.cat([torch.zeros_like(z), z], dim=1)"
        )
    if num_classes is not None and classes != num_classes:
        raise ValueError(
            f"logits have {classes} classes in dimension 1 (shape {_shape(logits)}), but num_classes={num_classes}; "
            "num_classes must be the network's number of outputs, and classes are in dimension 1"
        )
    if target.shape != (size, *spatial):
        raise ValueError(
            f"target must have shape {(size, *spatial)} to match logits of shape {_shape(logits)}, got {_shape(target)}; "
            "logits are (N, K, *spatial), target is (N, *spatial)"
        )
    target = target.long()
    kept = target != ignore_index
    target = torch.where(kept, target, 0)
    if target.numel() and (labels or target.is_cpu) and not hidden(target):
        _check_labels(target, classes)
    return Samples(logits, target, kept)


def hidden(tensor: Tensor) -> bool:
    """Whether values cannot be inspected, because a compiler or a ``torch.func`` transform is tracing."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001


# Measuring: predictions in any form


def for_measuring(
    logits: Array,
    target: Array,
    ignore_index: int = -100,
    *,
    probs: bool | None = None,
    task: Task = "multiclass",
    num_classes: int | None = None,
) -> Samples:
    """Check ``logits`` and ``target``, all labels included, for a metric; logits keep their type. See :class:`Given`."""
    scores = _as_scores(logits, "logits", probs=probs)
    labels = _as_labels(target, logits, ignore_index).to(scores.device)
    if task == "binary":
        labels = labels.squeeze(1) if labels.dim() > 1 and labels.shape == scores.shape else labels
        labels = _whole(labels) if labels.is_floating_point() else labels
    kept = labels != ignore_index if labels.shape == scores.shape[:1] + scores.shape[2:] else None
    scores = as_logits(scores, probs=probs, task=task, kept=kept)
    if labels.dtype is torch.bool and scores.shape[1] == 2:
        labels = labels.long()
    return _checked(scores, labels, ignore_index, num_classes, labels=True)


def as_logits(
    scores: Array,
    *,
    probs: bool | None = None,
    task: Task = "multiclass",
    kept: Tensor | None = None,
    name: str = "logits",
) -> Tensor:
    """Logits ``(N, K, *spatial)`` of scores given in the way that :class:`Given` describes.

    Args:
        scores: What was passed.
        probs: As in :class:`Given`.
        task: As in :class:`Given`.
        kept: False where scores may be anything.
        name: Their name in messages.
    """
    values = _as_scores(scores, name, probs=probs)
    classes = values.shape[1] if values.dim() > 1 else 1
    if one_of("task", task, ("multiclass", "binary")) == "binary" and classes != 2:
        return _of_two_classes(values, probs, kept, name)
    if classes < 2:
        raise ValueError(
            f"{name} must have shape (N, K) or (N, K, *spatial) with at least 2 classes, got {_shape(values)}; if these are "
            'scores of class 1 of two, pass task="binary", and probs=True if they are probabilities; for a single '
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
            f"got shape {_shape(scores)}"
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
        tolerance: How far a sum may be from 1; by default 0.001, or more if values are rounded to two or three digits.

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
            f"probs must have shape (N, K) or (N, K, *spatial), got {_shape(values)}; for probabilities of class 1 "
            'alone, pass probs=True and task="binary" to the metric or calibrator'
        )
    found: T = like(_logarithms(values, tolerance, None), probs)
    return found


_AS_THEY_ARE = "if these are logits, pass them directly"
_NO_PROBABILITY = "has the value {value:g}, which is not a probability; " + _AS_THEY_ARE
_NO_DISTRIBUTION = "adds up to {total:g}, not to 1; " + _AS_THEY_ARE + "; if they were rounded, divide by the sum"


def _logarithms(probs: Tensor, tolerance: float | None, kept: Tensor | None) -> Tensor:
    """Logarithms of probabilities, checked where they are ``kept``."""
    off = _off(probs)
    if tolerance is None:
        tolerance = _tolerance(probs) if bool((off > _narrow(probs)).any()) else _narrow(probs)
    for wrong, message in ((~(probs.amin(dim=1) >= 0), _NO_PROBABILITY), (~(off <= tolerance), _NO_DISTRIBUTION)):
        at = wrong if kept is None else wrong & kept
        if at.any():
            place = at.nonzero()[0].tolist()
            row = double(probs.movedim(1, -1)[tuple(place)])
            raise ValueError(f"probs: {_place(place)} {message.format(value=float(row.min()), total=float(row.sum()))}")
    return _at_least_single(probs).log()


def _refuse_probabilities(scores: Tensor, kept: Tensor | None, name: str) -> None:
    """Refuse probabilities passed as logits: a few rows usually rule them out, and only if not are all rows checked."""
    most = max(1, 2**20 // max(1, scores[:1].numel()))
    if kept is None:
        kept = torch.ones((), dtype=torch.bool, device=scores.device).expand(scores.shape[:1] + scores.shape[2:])
    for part, own in ((_corner(scores, 2), _corner(kept, 1)), (scores[:most], kept[:most])):
        if not bool(((part.amin(dim=1) >= 0) | ~own).all()) or not bool(((_off(part) <= _tolerance(part)) | ~own).all()):
            return
    if bool(kept[:most].any()):
        raise ValueError(
            f"{name} are probabilities: no row has a negative value, and each adds up to 1; pass `probs=True`, since the "
            "softmax of probabilities gives wrong numbers (or `probs=False` if they are logits after all)"
        )


def _corner(tensor: Tensor, spatial: int) -> Tensor:
    """The first samples, or a pixel of each of the first images; ``spatial`` is the dimension where pixels start."""
    tensor = tensor[:64]
    for dim in range(spatial, tensor.dim()):
        tensor = tensor.narrow(dim, 0, min(1, tensor.shape[dim]))
    return tensor


def _off(scores: Tensor) -> Tensor:
    """How far the sum of each row ``(N, K, *spatial)`` is from 1."""
    return (sum_double(scores, [1]) - 1).abs().float().to(scores.device)


def _narrow(scores: Tensor) -> float:
    """How far the sums of probabilities may be from 1 if they were rounded to their dtype only."""
    return max(1e-3, torch.finfo(scores.dtype).eps)


def _tolerance(scores: Tensor) -> float:
    """The same, or more if they look as if printed with two or three digits."""
    if scores.dtype not in (torch.float32, torch.float64) or not scores.numel():
        return _narrow(scores)
    for digits in (2, 3):
        scaled = scores * 10**digits
        if bool(((scaled - scaled.round()).abs() <= 1e-3).all()):
            return max(1e-3, min(0.05, 0.5 * scores.shape[1] / 10**digits))
    return _narrow(scores)


# Tensors from arrays, data frames and lists, and back


def shown(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function the options of :class:`Given` in its signature, in place of ``**given``, and refuse others."""
    own = inspect.signature(function)
    options = [parameter for parameter in own.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Given.__annotations__[name])
        for name, default in GIVEN.items()
    ]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for option in kwargs:
            if option not in signature.parameters:
                hint = did_you_mean(option, signature.parameters)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {option!r}{hint}")
        return function(*args, **kwargs)

    signature = own.replace(parameters=options + shared)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


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
        raise TypeError(f"{name} must be floating point numbers, got {_describe(scores)}; pass the network's raw outputs")
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
    """Labels that are integers but not of an integer dtype."""
    if bool((labels != labels.round()).any()):
        raise TypeError(_wrong_labels(labels))
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


# Processing samples


def blocks(samples: Samples) -> Iterator[Block]:
    """Split samples into blocks of ``(n, K)`` or ``(n, K, pixels)`` logits that stay in cache.

    Accelerators get large blocks instead, as launching work is what costs there. Logits are at least float32 in each block.
    """
    logits = samples.logits
    size, classes = logits.shape[:2]
    most = 2**20 if logits.is_cpu else 2**24
    pixels = logits.shape[2:].numel()
    whole = max(1, most // max(1, classes * pixels))  # samples or images at a time
    everything = bool(samples.kept.all())

    def block(logits: Tensor, target: Tensor, kept: Tensor) -> Block:
        places = None if everything else kept.flatten().nonzero().squeeze(1)
        return Block(_at_least_single(logits), target, kept, places)

    for start in range(0, size, whole):
        images, target, kept = (part[start : start + whole] for part in samples)
        if logits.dim() == 2:
            yield block(images, target, kept)
            continue
        images, target, kept = images.flatten(2), target.flatten(1), kept.flatten(1)
        width = max(1, most // (classes * len(images)))
        for left in range(0, pixels, width):
            columns = slice(left, left + width)
            yield block(images[..., columns], target[:, columns], kept[:, columns])


def reduce(values: Tensor, kept: Tensor, reduction: Reduction) -> Tensor:
    """Reduce ``values`` ``(N, *spatial)`` over what is not ignored; if nothing is left, 0 with zero gradient."""
    values = torch.where(kept, values, 0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.sum() / kept.sum().clamp(min=1)
    raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}")


def per_class(vector: Tensor, logits: Tensor) -> Tensor:
    """View a vector of K values so that it broadcasts along the classes of ``logits``, in their type."""
    return vector.to(logits.dtype).view(-1, *[1] * (logits.dim() - 2))


def _at_least_single(logits: Tensor) -> Tensor:
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def double(tensor: Tensor) -> Tensor:
    """``tensor`` in float64, moved to the CPU if its device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def sum_double(tensor: Tensor, dim: list[int]) -> Tensor:
    """Sum in float64, on the CPU if the device does not support that."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).sum(dim=dim, dtype=torch.float64)


def check_not_empty(count: int, ignore_index: int = -100, **_: object) -> None:
    """Refuse an empty set of samples; accepts all options of :class:`Given`."""
    if not count:
        raise ValueError(
            f"there is nothing to measure: no samples are left after ignoring those labelled ignore_index={ignore_index}"
        )


def _check_labels(target: Tensor, classes: int) -> None:
    lowest, highest = (int(value) for value in target.aminmax())
    if lowest < 0 or highest >= classes:
        wrong = highest if highest >= classes else lowest
        raise ValueError(
            f"target has value {wrong} but logits have {classes} classes (0..{classes - 1}); "
            f"if {wrong} marks samples or pixels to ignore, pass ignore_index={wrong}"
        )


def _check_values(logits: Tensor, kept: Tensor) -> None:
    """Refuse logits that are not finite, or probabilities as far as a few rows tell; waits for the device once."""
    wrong = (~logits.isfinite().all(dim=1) & kept).sum()
    few, own = _corner(logits.detach(), 2), _corner(kept, 1)
    alike = ((few.amin(dim=1) >= 0) & (_off(few) <= _narrow(few)) | ~own).all() & own.any()
    broken, probabilities = torch.stack([wrong, alike.to(wrong)]).tolist()
    if broken:
        raise ValueError(
            f"logits must be finite, but {broken} of {int(kept.sum())} samples have a NaN or infinite logit; "
            "the network has diverged: lower the learning rate or clip gradients, and check the inputs"
        )
    if probabilities:
        raise ValueError(
            "logits are probabilities: no row has a negative value, and each adds up to 1; losses take the network's raw "
            "outputs: remove its final softmax"
        )


def _place(place: list[int]) -> str:
    return f"row {place[0]}" + (f" at pixel {tuple(place[1:])}" if len(place) > 1 else "")


def _wrong_labels(target: object) -> str:
    return (
        f"target must be a tensor of integer class labels, got {_describe(target)}; "
        "turn one-hot or soft labels into labels with target.argmax(1), float labels with target.long()"
    )


def _describe(value: object) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
