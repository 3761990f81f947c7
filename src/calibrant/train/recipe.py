"""A recipe: everything that makes a training run what it is."""

import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from calibrant import data as datasets
from calibrant import losses, models
from calibrant.data import DataSet, LongTailKind, ValidationSet
from calibrant.losses import Loss
from calibrant.validation import in_range, one_of, whole

Augmentation = Literal["none", "crop-flip", "imagenet", "timm", "segmentation"]
Select = Literal["last", "accuracy", "nll", "ece", "mean_iou"]


@dataclass
class LongTail:
    """How the training set is cut down to a long tail.

    Attributes:
        ratio: How many times as many samples the largest class keeps as the smallest.
        kind: Shape: exp, pareto or step.
    """

    ratio: float = 1.0
    kind: LongTailKind = "exp"


@dataclass
class Data:
    """Where samples come from.

    Attributes:
        name: A data set by name: digits, mnist, fashion-mnist, cifar10, cifar100, svhn, tiny-imagenet, imagenet,
            imagenet-lt, newsgroups20, voc, or folders, npz and texts of one's own.
        root: Folder of all data; the environment variable CALIBRANT_DATA if not given.
        path: File or folder of one's own data, alone or under the root.
        validation: How much is held out for validation, a number or a fraction; the data set's own default if not given.
        validation_set: clean, or made worse to see what that does: shifted (corrupted images), small (a tenth) or noisy (a
            fifth of the labels wrong). Adaptive losses, the choice of a checkpoint and the temperature depend on it.
        seed: Which samples are held out; the seed of the run if not given.
        download: Let torchvision or scikit-learn download what is missing.
        long_tail: Cut the training set down to a long tail.
        limit: At most so many samples of each part, to try things out.
        options: Other options of the data set's function.
        size: Side of the images that the network sees, for images read from files.
        longest: Longest side that segmented images are scaled to before a crop of this size; as they are if not given.
        stride: Of segmented images, every so-manieth row and column of the logits is written to the run folder.
        workers: Processes that read files.
    """

    name: str = "digits"
    root: str | None = None
    path: str | None = None
    validation: float | None = None
    validation_set: ValidationSet = "clean"
    seed: int | None = None
    download: bool = False
    long_tail: LongTail = field(default_factory=LongTail)
    limit: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 224
    longest: int | None = None
    stride: int = 1
    workers: int = 4


@dataclass
class Model:
    """The network.

    Attributes:
        name: A network by name, timm:NAME, or smp:NAME for segmentation.
        options: Of the network, such as width of the small CNN.
        compile: Compile it with torch.compile.
    """

    name: str = "small-cnn"
    options: dict[str, Any] = field(default_factory=dict)
    compile: bool = False


@dataclass
class LossChoice:
    """The training loss.

    Attributes:
        name: Its key, such as cals-alm.
        options: Its hyper-parameters, such as margin; those not given come from the recipe's methods, then from the method's
            own defaults.
    """

    name: str = "ce"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Optimizer:
    """How weights are updated.

    Attributes:
        name: sgd, adam or adamw.
        lr: Learning rate.
        momentum: Of sgd.
        weight_decay: L2 penalty, or decoupled decay of adamw.
        nesterov: Of sgd.
        decay_all: Also decay biases and normalisation weights.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    decay_all: bool = True


@dataclass
class Schedule:
    """How the learning rate changes.

    Attributes:
        name: constant, step or cosine.
        milestones: Epochs at which step multiplies it by factor.
        factor: What step multiplies it by.
        warmup: Epochs of linear growth from warmup_lr.
        warmup_lr: Where it starts.
        minimum: Where cosine ends.
    """

    name: Literal["constant", "step", "cosine"] = "constant"
    milestones: list[int] = field(default_factory=list)
    factor: float = 0.1
    warmup: int = 0
    warmup_lr: float = 5e-7
    minimum: float = 0.0


@dataclass
class Recipe:
    """A training run.

    Attributes:
        name: What it is called; the folder of its runs.
        about: A sentence on where it comes from.
        data: Where samples come from.
        model: The network.
        loss: The training loss.
        methods: Hyper-parameters of losses that differ from their defaults here, by key, such as the margin.
        optimizer: How weights are updated.
        schedule: How the learning rate changes.
        epochs: Passes over the training set.
        batch_size: Samples of one update, over all processes.
        eval_batch_size: Samples of one batch of validation and test.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        augmentation: none, crop-flip (pad 4, crop, flip), imagenet (random resized crop, flip), timm (and colour jitter,
            random erasing) or segmentation (crop, flip and colour jitter of images with masks).
        validate_every: Epochs from one validation, and one update of an adaptive loss, to the next.
        select: Which checkpoint is reported: last, or the best by validation accuracy, nll, ece or mean_iou.
        num_bins: Bins of the calibration errors.
        seed: Of weights, order and augmentation.
        trainer: Options of lightning.Trainer, such as devices, strategy, precision or gradient_clip_val.
    """

    name: str = "run"
    about: str = ""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    loss: LossChoice = field(default_factory=LossChoice)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    epochs: int = 10
    batch_size: int = 128
    eval_batch_size: int = 512
    drop_last: bool = False
    augmentation: Augmentation = "none"
    validate_every: int = 1
    select: Select = "last"
    num_bins: int = 15
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)

    def check(self, *, allow_code: bool = False) -> None:
        """Refuse what cannot work, with the field's path and what is allowed."""
        for path, name, table in (
            ("data.name", self.data.name, datasets.DATA),
            ("model.name", self.model.name, models.MODELS),
            ("loss.name", self.loss.name, losses.METHODS),
        ):
            _check_name(path, name, table, allow_code=allow_code)
        for key, options in self.methods.items():
            _check_name("methods", key, losses.METHODS, allow_code=False)
            _check_options(f"methods.{key}", options, losses.METHODS[key].loss)
        if self.loss.name in losses.METHODS:
            _check_options("loss", self.loss.options, losses.METHODS[self.loss.name].loss)
        one_of("optimizer.name", self.optimizer.name, ("sgd", "adam", "adamw"))
        one_of("schedule.name", self.schedule.name, ("constant", "step", "cosine"))
        one_of("select", self.select, get_args(Select))
        one_of("augmentation", self.augmentation, get_args(Augmentation))
        one_of("data.long_tail.kind", self.data.long_tail.kind, ("exp", "pareto", "step"))
        one_of("data.validation_set", self.data.validation_set, get_args(ValidationSet))
        in_range("data.long_tail.ratio", self.data.long_tail.ratio, 1)
        in_range("optimizer.lr", self.optimizer.lr, 0, above=True)
        in_range("optimizer.weight_decay", self.optimizer.weight_decay, 0)
        for name in ("epochs", "batch_size", "eval_batch_size", "validate_every", "num_bins"):
            whole(name, getattr(self, name), 1)
        whole("data.stride", self.data.stride, 1)
        if self.select != "last" and self.validate_every > self.epochs:
            raise ValueError(
                f"select is {self.select}, but with validate_every = {self.validate_every} there is no validation"
            )
        _check_trainer(self.trainer)

    def to_dict(self) -> dict[str, Any]:
        """In plain Python types."""
        return asdict(self)

    # What it stands for

    def load_data(self, *, allow_code: bool = False) -> DataSet:
        """The data set, with its long tail."""
        spec = self.data
        seed = self.seed if spec.seed is None else spec.seed
        held = int(spec.validation) if spec.validation is not None and spec.validation >= 1 else spec.validation
        function = datasets.DATA.get(spec.name) or _import(spec.name, allow_code=allow_code)
        accepted = inspect.signature(function).parameters
        where = {"root": spec.root, "seed": seed, "download": spec.download}  # which not every data set has
        options = {**spec.options, "path": spec.path, "validation": held}
        options |= {name: value for name, value in where.items() if name in accepted}
        found = datasets.load(function, **options)
        if spec.long_tail.ratio > 1:
            train, indices = datasets.long_tail(found.train, spec.long_tail.ratio, spec.long_tail.kind, seed)
            before = found.split.get("train")
            split = {**found.split, "train": indices if before is None else before[indices]}
            found = replace(found, train=train, split=split)
        found = found if spec.limit is None else found.limited(spec.limit, self.seed)
        return replace(found, validation=datasets.altered(found.validation, spec.validation_set, found.num_classes, seed))

    def build_model(self, num_classes: int, facts: dict[str, Any], *, allow_code: bool = False) -> nn.Module:
        """The network, which is told the facts about its inputs."""
        if self.model.name in models.MODELS or self.model.name.startswith(models.PREFIXES):
            return models.create(self.model.name, num_classes, **facts, **self.model.options)
        network: nn.Module = _import(self.model.name, allow_code=allow_code)(num_classes=num_classes, **self.model.options)
        return network

    def build_loss(self, num_classes: int, ignore_index: int = -100, *, allow_code: bool = False) -> Loss:
        """The loss, with the recipe's hyper-parameters for its method and those given for this run."""
        name = self.loss.name
        if name in losses.METHODS:
            options = {"ignore_index": ignore_index, **self.methods.get(name, {}), **self.loss.options}
            return losses.create(name, num_classes=num_classes, **options)
        loss: Loss = _import(name, allow_code=allow_code)(**self.loss.options)
        return loss


def shipped() -> list[str]:
    """Names of the recipes that come with calibrant."""
    folder = resources.files("calibrant") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def find_recipe(name: str) -> Path:
    """The file of a shipped recipe, or of one's own."""
    if name in shipped():
        return Path(str(resources.files("calibrant") / "recipes" / f"{name}.yaml"))
    if Path(name).is_file():
        return Path(name)
    close = difflib.get_close_matches(name, shipped(), n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise FileNotFoundError(f"there is no recipe {name!r}, and no such file{hint} (calibrant list recipes shows all)")


def _check_name(path: str, name: str, table: Any, *, allow_code: bool) -> None:
    if name in table or (path == "model.name" and name.startswith(models.PREFIXES)):
        return
    if path != "methods" and ("." in name or ":" in name):
        if allow_code:
            return
        raise ValueError(f"{path}: {name!r} is code outside calibrant, which runs only with --allow-code")
    close = difflib.get_close_matches(name, table, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"{path} must be one of {', '.join(table)}, got {name!r}{hint}")


def _check_options(path: str, options: dict[str, Any], kind: Callable[..., Any]) -> None:
    accepted = [name for name in inspect.signature(kind).parameters if name != "num_classes"]
    for name in options:
        if name not in accepted:
            raise ValueError(f"{path}.{name} is not known; allowed are {', '.join(f'{path}.{a}' for a in accepted)}")


def _check_trainer(options: dict[str, Any]) -> None:
    from lightning.pytorch import Trainer  # noqa: PLC0415

    ours = {
        "max_epochs",
        "callbacks",
        "enable_checkpointing",
        "use_distributed_sampler",
        "check_val_every_n_epoch",
        "default_root_dir",
    }
    accepted = [name for name in inspect.signature(Trainer.__init__).parameters if name not in {"self", *ours}]
    for name in options:
        if name in ours:
            raise ValueError(f"trainer.{name} is set by the recipe itself (epochs, validate_every, ...)")
        if name not in accepted:
            close = difflib.get_close_matches(name, accepted, n=1)
            hint = f"did you mean trainer.{close[0]}?" if close else f"allowed are {', '.join(accepted)}"
            raise ValueError(f"trainer.{name} is not known; {hint}")


def _import(path: str, *, allow_code: bool) -> Callable[..., Any]:
    if not allow_code:
        raise ValueError(f"{path!r} is code outside calibrant, which runs only with --allow-code")
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path!r} cannot be imported ({error}); it has to be package.module.Name") from error
    return found
