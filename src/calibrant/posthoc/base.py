"""What all calibrators share: fit, transform, save, load, wrap."""

import hashlib
import inspect
import json
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import torch
from torch import Tensor, nn

from calibrant import inputs
from calibrant.checks import in_range, whole
from calibrant.extras import require
from calibrant.inputs import Array, Given, shown
from calibrant.posthoc.table import CALIBRATORS
from calibrant.tensors import Samples, Task

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")

#: Stands for the logarithm of 0, relative to the largest logit: float32 has no smaller probability.
ZERO = -104.0
OPTIONS = "calibrator.json"
STATE = "state.safetensors"
#: Maximum number of classes of a saved calibrator.
MOST_CLASSES: Final = 10**6
#: Who takes soft targets.
WITH_SOFT: Final = "temperature, vector, matrix and Dirichlet calibration take soft targets"
#: Learned state that must be positive.
POSITIVE: Final = ("temperature_", "floor_")
#: Scales of the logits that a calibrator is tried on when loaded; seven, which matches no other size by chance.
PROBES: Final = (0, 1, -1, 3, -3, 20, -20)


class Calibrator(nn.Module, ABC):
    """Learns from held-out logits how to correct the probabilities of a trained network.

    It is a module from logits ``(N, K)`` or ``(N, K, *spatial)`` to log-probabilities of the same shape. Learned
    state is in buffers whose names end in an underscore, None before :meth:`fit`.

    Attributes:
        key: Name on the command line and in saved files.
        preserves_accuracy: Whether the predicted class never changes.
        soft: Whether it can be fitted to soft targets, by their expected NLL.
        learned: Names of the buffers.

    Example:
        >>> import numpy
        >>> from calibrant.posthoc import create
        >>> logits, target = numpy.array([[4.0, 0.0]] * 8), numpy.array([0] * 6 + [1] * 2)
        >>> calibrator = create("temperature").fit(logits, target)
        >>> type(calibrator.transform(logits)).__name__, calibrator.predict_proba(logits[:1]).round(2).tolist()
        ('ndarray', [[0.75, 0.25]])
        >>> calibrator
        TemperatureScaling(criterion='nll', num_bins=15, 2 classes, temperature_ = 3.6410)
    """

    key: ClassVar[str]
    preserves_accuracy: ClassVar[bool] = False
    soft: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.num_classes: int | None = None
        self._columns: list[Any] | None = None  # of the data frame that it was fitted on
        for name in self.learned:
            self.register_buffer(name, None)

    @shown
    def fit(self, logits: Array, target: Array, **given: "Unpack[Given]") -> "Self":
        """Learn from held-out predictions, which the network must not have been trained on.

        Args:
            logits: ``(N, K)`` or ``(N, K, *spatial)``: a tensor, an array, a data frame or a list.
            target: True classes, ``(N,)`` or ``(N, *spatial)``; or soft targets, in the shape of the logits.
            **given: ``ignore_index``, ``probs`` and ``task``; see :class:`calibrant.inputs.Given`.

        Returns:
            The calibrator itself.
        """
        if given.get("task") == "multilabel":
            raise ValueError(
                f'each label needs a calibrator of its own: use calibrant.posthoc.PerLabel("{self.key}").fit(logits, target)'
            )
        samples = inputs.for_measuring(logits, target, soft=None if self.soft else f" ({WITH_SOFT})", **given)
        if not bool(samples.kept.any()):
            ignored = given.get("ignore_index", -100)
            raise ValueError(f"there is nothing to fit: there are no samples, or all are labelled ignore_index={ignored}")
        _check(samples)
        samples = samples._replace(logits=finite(samples.logits.detach()))
        self.num_classes = samples.logits.shape[1]
        self._columns = inputs.column_names(logits)
        with torch.no_grad():
            self._fit(samples)
        return self

    @abstractmethod
    def _fit(self, samples: Samples) -> None:
        """Set the buffers."""

    @abstractmethod
    def _calibrate(self, logits: Tensor) -> Tensor:
        """Log-probabilities of finite logits ``(N, K, *spatial)``."""

    def forward(self, logits: Tensor, *, probs: bool | None = None, task: Task = "multiclass") -> Tensor:
        """Return log-probabilities ``(N, K, *spatial)``, at least float32; see :class:`calibrant.inputs.Given`.

        As a layer of a network it does not wait for the device: probabilities are then detected on the CPU only.
        """
        logits = inputs.as_logits(logits, probs=False if probs is None and not logits.is_cpu else probs, task=task)
        self._check_fitted(logits)
        return self._map(logits)

    def _map(self, logits: Tensor) -> Tensor:
        """Log-probabilities of checked logits."""
        logits = finite(logits)
        log_probs = self._calibrate(logits)
        return with_lead(log_probs, logits) if self.preserves_accuracy else log_probs

    def transform(self, logits: T, *, probs: bool | None = None, task: Task = "multiclass") -> T:
        """Calibrated log-probabilities, in the type of the input: a tensor, an array, a data frame or a list.

        For single scores, ``task="binary"``, the calibrated log-odds of class 1.
        """
        found: T = self._transformed(logits, probs, task, lambda log_probs: log_probs, lambda both: both[:, 1] - both[:, 0])
        return found

    def predict_proba(self, logits: T, *, probs: bool | None = None, task: Task = "multiclass") -> T:
        """Calibrated probabilities, in the type of the input; for single scores, ``task="binary"``, those of class 1."""
        found: T = self._transformed(logits, probs, task, torch.exp, lambda both: both[:, 1].exp())
        return found

    @torch.no_grad()
    def _transformed(
        self, given: Any, probs: bool | None, task: Task, of_all: Callable[..., Tensor], of_two: Callable[..., Tensor]
    ) -> Any:
        """Apply a function to the log-probabilities: of all classes, or of two that share a single score."""
        columns = inputs.column_names(given)
        if columns is not None and self._columns is not None and columns != self._columns:
            raise ValueError(
                f"the columns are {_listed(columns)}, but {type(self).__name__} was fitted on {_listed(self._columns)}; "
                "pass the same columns in the same order"
            )
        scores = inputs.as_tensor(given, "logits")
        logits = inputs.as_logits(scores, probs=probs, task=task)
        self._check_fitted(logits)
        log_probs = self._map(logits)
        one = log_probs.shape != scores.shape
        return inputs.like(of_two(log_probs).reshape(scores.shape) if one else of_all(log_probs), given)

    def summary(self) -> str:
        """The learned scalars."""
        return ", ".join(f"{name} = {float(value):.4f}" for name, value in self._found() if value.dim() == 0)

    def _found(self) -> list[tuple[str, Tensor]]:
        found = [(name, getattr(self, name)) for name in self.learned if name != "floor_"]
        return [(name, value) for name, value in found if isinstance(value, Tensor)]

    def extra_repr(self) -> str:
        """Options and learned scalars."""
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        if self.num_classes is None:
            return ", ".join([*options, "not fitted"])
        ranges = [
            f"{name}: {' x '.join(map(str, value.shape))} from {float(value.min()):.4g} to {float(value.max()):.4g}"
            for name, value in self._found()
            if value.dim() and value.numel()
        ]
        return ", ".join(filter(None, [*options, f"{self.num_classes} classes", self.summary(), *ranges]))

    def wrap(self, model: nn.Module, *, probs: bool = False) -> nn.Module:
        """A network that gives calibrated log-probabilities instead of ``model``'s logits, also for ``torch.export``.

        With ``probs=True`` the model's outputs are probabilities.
        """
        self._check_fitted()
        return nn.Sequential(model, Logarithm(), self) if probs else nn.Sequential(model, self)

    # Files

    @property
    def options(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write a folder with the options as JSON and the learned state as safetensors.

        Raises:
            FileExistsError: If ``folder`` already exists; ``force`` replaces an earlier calibrator.
        """
        self._check_fitted()
        folder = Path(folder)
        replaces = (folder / OPTIONS).exists()
        if folder.exists() and not (force and replaces) and any(folder.iterdir() if folder.is_dir() else [folder]):
            cure = "pass `force=True` to replace it" if replaces else "choose another name"
            raise FileExistsError(f"{folder} already exists; {cure}")
        content = {"calibrator": self.key, "version": 1, "num_classes": self.num_classes, "options": self.options}
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            require("safetensors.torch", "saving a calibrator").save_file(state, new / STATE)
            (new / OPTIONS).write_text(json.dumps({**content, "checksum": _checksum(content, new / STATE)}, indent=1))
            (new / STATE).chmod((new / OPTIONS).stat().st_mode)  # safetensors lets only the owner read it
            if folder.exists():
                folder.replace(Path(temporary) / "old")
            new.replace(folder)

    @staticmethod
    def load(folder: str | Path) -> "Calibrator":
        """Read what :meth:`save` wrote; the files cannot run code.

        Raises:
            ValueError: If the folder does not hold a calibrator.
        """
        folder = Path(folder)
        inside = [] if (folder / OPTIONS).exists() else sorted(path.parent.name for path in folder.glob(f"*/{OPTIONS}"))
        if inside:
            named = ", ".join(str(folder / name) for name in inside)
            raise ValueError(f"{folder} holds the calibrators {', '.join(inside)}; choose one: {named}")
        if not folder.exists():
            raise ValueError(f"{folder} does not exist; it should be a folder written by calibrant calibrate, or by save()")
        try:
            content = json.loads((folder / OPTIONS).read_text())
            checksum = content.pop("checksum", None)
            if checksum not in (None, _checksum(content, folder / STATE)):
                raise ValueError("it is damaged: its checksum does not match")  # noqa: TRY301
            state = require("safetensors.torch", "loading a calibrator").load_file(folder / STATE)
            calibrator: Calibrator = CALIBRATORS[content["calibrator"]].load()(**content["options"])
            calibrator.num_classes = whole("num_classes", content["num_classes"], 2)
            in_range("num_classes", calibrator.num_classes, 2, MOST_CLASSES)
            calibrator._prepare_to_load(state)
            calibrator.load_state_dict(state)
            calibrator._try_out()
        except ModuleNotFoundError:
            raise
        except Exception as error:
            reason = "a file is missing" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{folder} does not hold a calibrator ({reason}); "
                "it needs the files calibrator.json and state.safetensors that save() writes"
            ) from error
        return calibrator

    @torch.no_grad()
    def _try_out(self) -> None:
        """Refuse a state that does not yield probabilities."""
        for name, tensor in self.state_dict().items():
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} holds values that are not finite")
            if name in POSITIVE and not bool((tensor > 0).all()):
                raise ValueError(f"{name} must be more than 0")
        assert self.num_classes is not None  # noqa: S101
        ramp = torch.linspace(-5, 5, self.num_classes)
        logits = torch.stack([scale * ramp.roll(scale) for scale in PROBES])
        dense = CALIBRATORS[self.key].dense
        log_probs = self._map(logits[..., None, None].expand(-1, -1, 3, 3) if dense else logits)
        if log_probs.shape[:2] != logits.shape or not bool((log_probs.logsumexp(dim=1).abs() < 1e-3).all()):
            raise ValueError("its learned state does not yield probabilities")

    def _prepare_to_load(self, state: dict[str, Tensor]) -> None:
        """Allocate the learned state."""
        for name in self.learned:
            setattr(self, name, torch.empty_like(state[name]))

    # Checks

    def _check_fitted(self, logits: Tensor | None = None) -> None:
        if self.num_classes is None:
            raise RuntimeError(f"{type(self).__name__} is not fitted yet; call fit(logits, target) first")
        if logits is None:
            return
        if logits.shape[1] != self.num_classes:
            raise ValueError(
                f"logits have {logits.shape[1]} classes in dimension 1 (shape {tuple(logits.shape)}), but "
                f"{type(self).__name__} was fitted on {self.num_classes}"
            )


class Pointwise(Calibrator):
    """A calibrator that treats each sample or pixel on its own."""

    @abstractmethod
    def _log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of finite logits ``(..., K)``, classes last."""

    def _calibrate(self, logits: Tensor) -> Tensor:
        return self._log_probs(logits.movedim(1, -1)).movedim(-1, 1)


class Logarithm(nn.Module):
    """Logits of a network that outputs probabilities."""

    def forward(self, probs: Tensor) -> Tensor:
        """Return their logarithms."""
        return probs.log()


def _checksum(content: dict[str, Any], state: Path) -> str:
    """Checksum of the options and the learned state."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode() + state.read_bytes()).hexdigest()


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")


def finite(logits: Tensor) -> Tensor:
    """Logits in at least float32, with a finite value for a probability of 0."""
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return torch.where(logits == -torch.inf, logits.amax(dim=1, keepdim=True) + ZERO, logits)


def with_lead(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Log-probabilities whose largest entry is that of the largest logit.

    A calibrator that keeps the order of the classes may still map nearly equal logits to equal values; the largest is then
    raised by one unit in the last place.
    """
    top = logits.argmax(dim=1, keepdim=True)
    lost = log_probs.argmax(dim=1, keepdim=True) != top
    ahead = log_probs.amax(dim=1, keepdim=True) * (1 - torch.finfo(log_probs.dtype).eps)
    return log_probs.scatter(1, top, torch.where(lost, ahead, log_probs.gather(1, top)))


def rows(samples: Samples) -> tuple[Tensor, Tensor]:
    """Logits ``(n, K)`` and labels ``(n,)``, or soft targets ``(n, K)``, of the samples that are not ignored."""
    if samples.soft is not None:
        return samples.logits.movedim(1, -1)[samples.kept], samples.soft.movedim(1, -1)[samples.kept]
    if samples.logits.dim() == 2 and bool(samples.kept.all()):
        return samples.logits, samples.target
    return samples.logits.movedim(1, -1)[samples.kept], samples.target[samples.kept]


def own_log_probs(samples: Samples, log_probs: Any) -> Tensor:
    """Log-probability of each kept sample's true class, a few samples or images at a time."""
    found, step = [], max(1, 2**22 // max(1, samples.logits[:1].numel()))
    for logits, target, kept in zip(*(part.split(step) for part in samples[:3]), strict=True):
        own = log_probs(logits).gather(1, target.unsqueeze(1)).squeeze(1)
        found.append(own[kept].double())
    return torch.cat(found)


def mean_nll(samples: Samples, log_probs: Any) -> float:
    """Negative log-likelihood."""
    return -float(own_log_probs(samples, log_probs).mean())


def _check(samples: Samples) -> None:
    broken = (samples.logits.isnan() | (samples.logits == torch.inf)).any(dim=1) | (samples.logits == -torch.inf).all(dim=1)
    broken &= samples.kept
    if broken.any():
        place = broken.nonzero()[0].tolist()
        raise ValueError(
            f"logits: row {place[0]}{f' at pixel {tuple(place[1:])}' if len(place) > 1 else ''} has no softmax (NaN or "
            f"infinite), nor do {int(broken.sum()) - 1} others"
        )
