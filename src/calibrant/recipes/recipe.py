"""A recipe: everything that defines a training run."""

import difflib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from calibrant import data as datasets, losses, models
from calibrant.checks import in_range, one_of, whole
from calibrant.data.table import Augmentation, LongTailKind, Mixing, ValidationSet
from calibrant.errors import UNFIT, InputError, did_you_mean, input_errors, lookup
from calibrant.extras import require
from calibrant.files import file_name
from calibrant.recipes.fields import flatten, nest
from calibrant.records import from_fields
from calibrant.registry import Entry, table

if TYPE_CHECKING:
    from torch import nn

    from calibrant.data import DataSet
    from calibrant.losses import Loss

FOLDER = Path(__file__).parent
#: Fields that affect where and how fast a run trains, or which of its results are shown, but not what it learns: a run can
#: be resumed when they change. The trainer's options listed here are known to change nothing but rounding; a run stopped by
#: max_time is not finished.
CIRCUMSTANCES = (
    *(("about",), ("temperature",), ("data", "root"), ("data", "workers"), ("data", "download"), ("model", "channels_last")),
    *(("trainer", name) for name in ("accelerator", "devices", "num_nodes", "strategy", "logger", "log_every_n_steps")),
    *(("trainer", name) for name in ("max_time", "profiler", "detect_anomaly", "benchmark", "deterministic")),
)
#: Largest seed: what is derived from it and the epoch must fit into 64 bits.
SEEDS = 2**32 - 1
#: Maximum number of values in a recipe, nested lists included: a few lines of YAML can expand to billions.
FIELDS = 10_000
#: Groups whose first field may be given by the group's name alone, such as ``loss="mbls"``; in some, unknown fields are
#: options of what is named, such as ``loss.margin``.
GROUPS = {"loss": True, "model": True, "data": False, "optimizer": False, "schedule": False}
#: Names of fields elsewhere, and here.
OTHER_NAMES = {
    **dict.fromkeys(("learning_rate", "rate"), "lr"),
    **dict.fromkeys(("wd", "decay", "l2"), "weight_decay"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("bs", "train_batch_size"), "batch_size"),
    **dict.fromkeys(("bins", "n_bins"), "num_bins"),
    **dict.fromkeys(("network", "net", "arch", "architecture"), "model"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("gpus", "devices"), "trainer.devices"),
    **{name: f"trainer.{name}" for name in ("precision", "accelerator", "strategy", "logger", "max_time")},
    "dataset": "data",
    "criterion": "loss",
    "scheduler": "schedule",
    "num_workers": "workers",
    "clip": "trainer.gradient_clip_val",
    "imbalance": "data.long_tail.ratio",
    "margin": "loss.margin",
}
#: Prefix of the names of networks, losses and data that were passed to ``fit`` as objects.
GIVEN = "given: "


@dataclass
class LongTail:
    """How the training set is cut down to a long tail.

    Attributes:
        ratio: Imbalance ratio, samples of the largest class over those of the smallest.
        kind: Shape: exp, pareto or step.
    """

    ratio: float = 1.0
    kind: LongTailKind = "exp"


@dataclass
class Data:
    """Where samples come from.

    Attributes:
        name: A data set by name: digits, mnist, fashion-mnist, cifar10, cifar100, svhn, tiny-imagenet, imagenet,
            imagenet-lt, newsgroups20, voc, or your own folders, npz and texts.
        root: Data folder; the environment variable CALIBRANT_DATA if not given.
        path: File or folder of your own data, as given or under the root.
        validation: Samples held out for validation, a number or a fraction; the data set's own default if not given.
        validation_set: clean, or degraded on purpose: shifted (corrupted images), small (a tenth) or noisy (a fifth of the
            labels wrong). It affects adaptive losses, checkpoint selection and the temperature.
        test_from_validation: Fraction of the validation set that takes the place of the test set, which is not touched: for
            choosing hyper-parameters, as calibrant tune does. The rest remains the validation set.
        seed: Seed of the split; the seed of the run if not given.
        download: Download missing data, if the data set supports it.
        long_tail: Cut the training set down to a long tail.
        limit: Maximum number of samples in each part, for quick experiments.
        options: Other options of the data set's function.
        size: Side of the images that the network sees, for images read from files.
        longest: Longest side that segmented images are scaled to before a crop of this size; not scaled if not given.
        stride: For segmentation, every n-th row and column of the logits is written to the run folder.
        workers: Worker processes that read files.
    """

    name: str = "digits"
    root: str | None = None
    path: str | None = None
    validation: float | None = None
    validation_set: ValidationSet = "clean"
    test_from_validation: float = 0.0
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
        options: Options of the network, such as width of the small CNN.
        compile: Compile it with torch.compile.
        channels_last: Lay images out in memory with their channels last. If not given, for image classification on a CPU,
            where it is faster, unless the network is your own code.
    """

    name: str = "small-cnn"
    options: dict[str, Any] = field(default_factory=dict)
    compile: bool = False
    channels_last: bool | None = None


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
        momentum: Momentum of sgd.
        weight_decay: L2 penalty, or decoupled decay of adamw.
        nesterov: Nesterov momentum for sgd.
        betas: Decay rates of the moving averages of the gradient and its square in adam and adamw.
        eps: Term that adam and adamw add to the denominator for numerical stability.
        decay_all: Also decay biases and normalisation weights.
    """

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    decay_all: bool = True


@dataclass
class Schedule:
    """How the learning rate changes.

    Attributes:
        name: constant, step or cosine.
        milestones: Epochs at which step multiplies it by factor.
        factor: What step multiplies it by.
        warmup: Epochs of linear warm-up from warmup_lr.
        warmup_lr: Learning rate at the start of the warm-up.
        minimum: Learning rate at the end of cosine.
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
        name: Name of the recipe, and of the folder of its runs.
        about: One sentence about its origin.
        data: Where samples come from.
        model: The network.
        loss: The training loss.
        methods: Hyper-parameters of losses that differ from their defaults here, by key, such as the margin.
        optimizer: How weights are updated.
        schedule: How the learning rate changes.
        epochs: Passes over the training set.
        batch_size: Samples per update, over all processes.
        eval_batch_size: Samples per batch in validation and test.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        augmentation: none, crop-flip (pad 4, crop, flip), imagenet (random resized crop, flip), timm (and colour jitter,
            random erasing) or segmentation (crop, flip and colour jitter of images with masks); mixup, cutmix and regmixup
            stand for that mixing and no other augmentation.
        mixing: How the augmented images of a batch are mixed, and their labels with them: none, mixup, cutmix, or regmixup
            (mixup as a second term of the loss, beside the batch as it is).
        mixing_alpha: Shares are drawn from Beta(alpha, alpha); by default 1 for mixup and cutmix, 10 for regmixup.
        validate_every: Epochs between validations, each of which also updates adaptive losses; a fraction, such as 0.25, for
            several per epoch, the last one at its end.
        curves: What is measured at each validation: validation, or test to measure the test set as well, for curves only; it
            is never used to select anything.
        select: Which checkpoint is reported: last, or the best by a measure on the validation part, such as accuracy or nll.
        temperature: What temperature scaling minimises on the validation set: nll, or ece on the papers' grid 0.1, 0.2, ...,
            10. Results hold both.
        num_bins: Number of bins for the calibration errors.
        seed: Seed of weights, order and augmentation.
        trainer: Options of lightning.Trainer, such as devices, strategy, precision or gradient_clip_val.

    Example:
        >>> from calibrant.recipes import Recipe
        >>> recipe = Recipe.load("digits-lt", loss="mbls", epochs=5)
        >>> recipe.loss.name, recipe.epochs, recipe.model.name
        ('mbls', 5, 'small-cnn')
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
    mixing: Mixing = "none"
    mixing_alpha: float | None = None
    validate_every: float = 1
    curves: Literal["validation", "test"] = "validation"
    select: str = "last"
    temperature: Literal["nll", "ece"] = "nll"
    num_bins: int = 15
    seed: int = 0
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for group in GROUPS:  # Recipe(loss="mbls"), Recipe(optimizer={"lr": 1e-3})
            value = getattr(self, group)
            if isinstance(value, str | Mapping):
                own = nest({full_path(path, inner): inner for path, inner in flatten({group: value}).items()})[group]
                _refuse_unknown(_group(group), own, f"{group}.")
                setattr(self, group, from_fields(_group(group), own, group))
        if self.augmentation in ("mixup", "cutmix", "regmixup"):
            if self.mixing not in ("none", self.augmentation):
                raise InputError(f"augmentation {self.augmentation} and mixing {self.mixing} exclude each other")
            self.mixing, self.augmentation = self.augmentation, "none"

    # Reading and writing

    @staticmethod
    def load(source: "str | Path | Recipe | Mapping[str, Any]", **overrides: Any) -> "Recipe":
        """Read a recipe, and override some of its fields.

        Args:
            source: Name of a built-in recipe, a .yaml, a mapping of fields, or a recipe.
            **overrides: Fields: ``epochs=3``, ``loss="mbls"``, ``optimizer={"lr": 1e-3}``, or with dots,
                ``**{"loss.margin": 6}``, or ``**{"fl.gamma": 5}`` for one method; an empty mapping clears a group, as in
                ``data={"options": {}}``.

        Raises:
            InputError: If there is no such recipe, or a field is unknown or has the wrong type.
        """
        if isinstance(source, Recipe):
            content, name = source.to_dict(), source.name
        elif isinstance(source, Mapping):
            content, name = dict(source), str(source.get("name", "run"))
        else:
            path = find(source)
            content, name = read_yaml(path), path.stem
        changes = {key: asdict(value) if is_dataclass(value) else value for key, value in overrides.items()}  # type: ignore[arg-type]
        own, given = (
            {full_path(path, value): value for path, value in flatten(part).items()} for part in (content, changes)
        )
        cleared = tuple(f"{path}." for path, value in given.items() if value == {})
        kept = {path: value for path, value in own.items() if not path.startswith(cleared)}
        with input_errors(f"recipe {name}"):
            recipe = Recipe.from_dict(nest({**kept, **given}))
        return replace(recipe, name=name) if recipe.name == "run" else recipe

    @classmethod
    def from_dict(cls, content: Any, where: str = "") -> "Recipe":
        """A recipe from plain Python types; unknown fields are refused."""
        _refuse_unknown(cls, content, "")
        return from_fields(cls, content, where)

    def to_dict(self) -> dict[str, Any]:
        """As plain Python types."""
        return asdict(self)

    def to_yaml(self) -> str:
        """As the text of a .yaml file."""
        text: str = require("yaml", "writing a recipe").safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        return text

    def difference(self, other: "Recipe") -> str:
        """The first field that differs in another recipe, or "".

        Circumstances, such as the number of workers, and hyper-parameters of losses other than the run's are ignored.
        """
        mine, theirs = (flatten(json.loads(json.dumps(recipe.to_dict()))) for recipe in (self, other))
        for path in dict.fromkeys([*mine, *theirs]):
            group, *rest = path.split(".")
            if any((group, *rest)[: len(part)] == part for part in CIRCUMSTANCES):
                continue
            if group == "methods" and rest and rest[0] not in (self.loss.name, other.loss.name):
                continue
            a, b = mine.get(path), theirs.get(path)
            if a != b and not (a in ({}, [], None) and b in ({}, [], None)):
                return f"{path} was {a!r}, now {b!r}"
        return ""

    # Checks

    def check(self, *, allow_code: bool = False, given: Collection[str] = ()) -> None:
        """Refuse what cannot work, naming the field's path and what is allowed.

        Args:
            allow_code: Allow code from outside calibrant in the recipe.
            given: Groups for which an object was passed: data, model, loss.
        """
        if not self.name or file_name(self.name) != self.name:
            raise InputError(f"name must be a plain name, as it also names a folder; got {self.name!r}")
        for path, value in flatten(self.to_dict()).items():
            _check_plain(path, value)
        for path, name, known in (
            ("data.name", self.data.name, datasets.DATA),
            ("model.name", self.model.name, models.MODELS),
            ("loss.name", self.loss.name, losses.METHODS),
        ):
            if path.removesuffix(".name") not in given:
                _check_name(path, name, known, allow_code=allow_code)
        for key, options in self.methods.items():
            method = lookup(key, losses.METHODS, "methods")
            _check_options(f"methods.{key}", options, method.loss)
        if self.loss.name in losses.METHODS:
            _check_options("loss", self.loss.options, losses.METHODS[self.loss.name].loss)
        one_of("optimizer.name", self.optimizer.name, ("sgd", "adam", "adamw"))
        one_of("schedule.name", self.schedule.name, ("constant", "step", "cosine"))
        one_of("temperature", self.temperature, ("nll", "ece"))
        one_of("augmentation", self.augmentation, get_args(Augmentation))
        one_of("mixing", self.mixing, get_args(Mixing))
        if self.mixing_alpha is not None:
            in_range("mixing_alpha", self.mixing_alpha, 0, above=True)
        one_of("data.long_tail.kind", self.data.long_tail.kind, get_args(LongTailKind))
        one_of("data.validation_set", self.data.validation_set, get_args(ValidationSet))
        in_range("data.long_tail.ratio", self.data.long_tail.ratio, 1)
        for name in ("epochs", "batch_size", "eval_batch_size"):
            whole(name, getattr(self, name), 1)
        whole("num_bins", self.num_bins, 1)
        in_range("num_bins", self.num_bins, 1, 10_000)
        self._check_data()
        self._check_optimizer()
        self._check_schedule()
        self._check_validation()

    def _check_data(self) -> None:
        for name, low in (("size", 1), ("longest", 1), ("stride", 1), ("limit", 1), ("workers", 0), ("seed", 0)):
            value = getattr(self.data, name)
            if value is not None:
                whole(f"data.{name}", value, low)
                in_range(f"data.{name}", value, low, SEEDS if name in ("seed", "limit") else 2**15)
        whole("seed", self.seed, 0)
        in_range("seed", self.seed, 0, SEEDS)
        if self.data.validation is not None:
            in_range("data.validation", self.data.validation, 0)
        in_range("data.test_from_validation", self.data.test_from_validation, 0, 0.9)

    def _check_optimizer(self) -> None:
        spec = self.optimizer
        in_range("optimizer.lr", spec.lr, 0, above=True)
        in_range("optimizer.weight_decay", spec.weight_decay, 0)
        in_range("optimizer.momentum", spec.momentum, 0, 1)
        if len(spec.betas) != 2 or not all(0 <= beta < 1 for beta in spec.betas):
            raise InputError(f"optimizer.betas must be two numbers from 0 up to 1, such as [0.9, 0.999]; got {spec.betas}")
        in_range("optimizer.eps", spec.eps, 0)
        if spec.name == "sgd" and spec.nesterov and not spec.momentum:
            raise InputError("optimizer.nesterov needs a momentum: `optimizer.momentum=0.9`")

    def _check_schedule(self) -> None:
        for milestone in self.schedule.milestones:
            whole("schedule.milestones", milestone, 0)
        whole("schedule.warmup", self.schedule.warmup, 0)
        in_range("schedule.factor", self.schedule.factor, 0, above=True)
        in_range("schedule.warmup_lr", self.schedule.warmup_lr, 0)
        in_range("schedule.minimum", self.schedule.minimum, 0)

    def _check_validation(self) -> None:
        from calibrant.metrics.panel import PanelResult  # noqa: PLC0415 - imports torch
        from calibrant.metrics.table import MEASURES  # noqa: PLC0415

        one_of("curves", self.curves, ("validation", "test"))
        in_range("validate_every", self.validate_every, 0, above=True)
        if self.validate_every > 1 and not float(self.validate_every).is_integer():
            raise InputError(
                f"validate_every must be a whole number of epochs, or a fraction of one, below 1; got {self.validate_every}"
            )
        if self.select == "last":
            return
        lookup(self.select, {"last": None, **{k: m for k, m in MEASURES.items() if PanelResult.has(m)}}, "select")
        if self.validate_every > self.epochs:
            raise ValueError(
                f"select is {self.select}, but with validate_every = {self.validate_every:g} there is no validation"
            )

    # Building

    def load_data(self, given: Any = None, *, allow_code: bool = False) -> "DataSet":
        """The data set, with its long tail.

        Args:
            given: Samples to use instead of the named data set; see :func:`calibrant.data.dataset_from`.
            allow_code: Allow code from outside calibrant in the recipe.
        """
        spec = self.data
        seed = self.seed if spec.seed is None else spec.seed
        number = spec.validation is not None and (spec.validation >= 1 or spec.validation == 0)
        held = int(spec.validation) if number and spec.validation is not None else spec.validation
        if given is not None:
            return self._cut(datasets.dataset_from(given, validation=held, seed=seed), seed)
        known = datasets.DATA.get(spec.name)
        function = known.load() if known is not None else import_name(spec.name, allow_code=allow_code)
        accepted = inspect.signature(function).parameters
        where = {"root": spec.root, "seed": seed, "download": spec.download}  # not every data set takes these
        options = {**spec.options, "path": spec.path, **{name: value for name, value in where.items() if name in accepted}}
        splits = known is not None or "validation" in accepted  # your own need not
        found: Any = datasets.create(function, **options, **({"validation": held} if splits else {}))
        if not isinstance(found, datasets.DataSet):
            found = datasets.dataset_from(found, validation=held, seed=seed)
        elif held is not None and not splits:
            raise InputError(f"{spec.name} has a validation part of its own, and takes no `data.validation`")
        return self._cut(found, seed)

    def _cut(self, found: "DataSet", seed: int) -> "DataSet":
        """Apply the recipe's limit, long tail and change of the validation set."""
        spec = self.data
        if spec.long_tail.ratio > 1:
            found = found.long_tailed(spec.long_tail.ratio, kind=spec.long_tail.kind, seed=seed)
        found = found if spec.limit is None else found.limited(spec.limit, seed=self.seed)
        if spec.test_from_validation:
            found = found.tested_on_validation(spec.test_from_validation, seed=seed)
        return replace(found, validation=datasets.altered(found.validation, spec.validation_set, found.num_classes, seed))

    def build_model(self, num_classes: int, facts: Mapping[str, Any], *, allow_code: bool = False) -> "nn.Module":
        """The network, built with the facts about its inputs."""
        if self.model.name in models.MODELS or self.model.name.startswith(models.PREFIXES):
            return models.create(self.model.name, num_classes, **facts, **self.model.options)
        function = import_name(self.model.name, allow_code=allow_code)
        network: nn.Module = function(num_classes=num_classes, **self.model.options)
        if not callable(getattr(network, "parameters", None)):
            raise InputError(f"expected a torch.nn.Module, got {type(network).__name__}")
        return network

    def build_loss(self, num_classes: int, ignore_index: int = -100, *, allow_code: bool = False) -> "Loss":
        """The loss, with the recipe's hyper-parameters for its method and those given for this run."""
        name = self.loss.name
        if name in losses.METHODS:
            options = {"ignore_index": ignore_index, **self.methods.get(name, {}), **self.loss.options}
            return losses.create(name, num_classes=num_classes, **options)
        kind: Any = import_name(name, allow_code=allow_code)
        known = inspect.signature(kind).parameters
        own = {"ignore_index": ignore_index} if "ignore_index" in known and ignore_index != -100 else {}
        return losses.build(kind, num_classes, {**own, **self.loss.options}, repr(name))


@dataclass(frozen=True)
class RecipeEntry(Entry):
    """A built-in recipe."""

    def load(self) -> Recipe:
        """Read it."""
        return Recipe.load(self.key)


#: Built-in recipes by name.
RECIPES = table(
    *(RecipeEntry(name, str(FOLDER / f"{name}.yaml"), "") for name in sorted(p.stem for p in FOLDER.glob("*.yaml")))
)


def find(source: str | Path) -> Path:
    """The file of a built-in recipe, or of your own."""
    if str(source) in RECIPES:
        return FOLDER / f"{source}.yaml"
    if Path(source).is_file():
        return Path(source)
    hint = did_you_mean(source, RECIPES)
    raise InputError(f"there is no recipe {str(source)!r}, and no such file{hint} (calibrant list recipes shows all)")


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields of a .yaml; it cannot run code.

    Raises:
        InputError: If it holds anything else.
    """
    yaml = require("yaml", "reading a recipe")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, *UNFIT) as error:  # PyYAML raises all kinds, such as AttributeError for an invalid date
        raise InputError(f"{path} cannot be read as YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} should hold the fields of a recipe, but holds {type(content).__name__}")
    _check_size(content, path)
    return content


def _check_size(content: Any, path: Path) -> None:
    """Refuse a file that is small but expands to an enormous size through YAML aliases."""
    left, rest = FIELDS, [content]
    while rest:
        value, left = rest.pop(), left - 1
        rest += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if left < 0:
            raise InputError(f"{path} holds more than {FIELDS:,} values; a recipe has a few dozen")


def import_name(path: str, *, allow_code: bool) -> Callable[..., Any]:
    """Your own class or function by its import path, such as ``package.module.Name``."""
    if not allow_code:
        raise InputError(f"{path!r} is code outside calibrant, which runs only with `allow_code=True`")
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # unlike python, a command does not look there
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{path!r} cannot be imported ({error}); it has to be package.module.Name") from error
    return found


# Fields by their paths


def full_path(path: str, value: Any) -> str:
    """Short forms: ``loss`` is ``loss.name``, ``loss.margin`` ``loss.options.margin``, ``fl.gamma`` ``methods.fl.gamma``."""
    group, _, rest = path.partition(".")
    if group in losses.METHODS and rest:
        return f"methods.{path}"
    if group not in GROUPS:
        return path
    if not rest:
        return group if value == {} else f"{group}.name"
    if GROUPS[group] and rest.split(".")[0] not in {f.name for f in fields(_group(group))}:
        return f"{group}.options.{rest}"
    return path


def _group(name: str) -> Any:
    return get_type_hints(Recipe)[name]


def _refuse_unknown(kind: Any, content: Any, prefix: str) -> None:
    """Refuse fields that do not exist, with the closest that does."""
    if not isinstance(content, dict):
        return
    known, hints = [f.name for f in fields(kind)], get_type_hints(kind)
    for name, value in content.items():
        if name not in known:
            meant = _suggestion(f"{prefix}{name}")
            hint = f"did you mean `{meant}`?" if meant else f"allowed are {', '.join(prefix + other for other in known)}"
            raise InputError(f"{prefix}{name} is not a field of a recipe; {hint}")
        if is_dataclass(hints[name]):
            _refuse_unknown(hints[name], value, f"{prefix}{name}.")


def _suggestion(path: str) -> str:
    """The path of the field that was probably meant, first in its own group, then in all; or nothing."""
    group, _, last = path.lower().replace("-", "_").rpartition(".")
    last = OTHER_NAMES.get(last, last)
    if "." in last:
        return last
    known = {path: path.rpartition(".") for path in [*flatten(Recipe().to_dict()), *GROUPS]}
    siblings = {name: path for path, (above, _, name) in known.items() if above == group}
    everywhere = {name: path for path, (_, _, name) in reversed(known.items())}
    for names in (siblings, everywhere):
        close = [last] if last in names else difflib.get_close_matches(last, names, n=1)
        if close:
            return names[close[0]]
    return ""


def _check_plain(path: str, value: Any) -> None:
    """Refuse what a file cannot hold, such as dates or objects."""
    for inner in value if isinstance(value, list | tuple) else [value]:
        if isinstance(inner, list | tuple):
            _check_plain(path, inner)
        elif isinstance(inner, Mapping):
            for key, more in inner.items():
                _check_plain(f"{path}.{key}", more)
        elif not isinstance(inner, str | int | float | None):
            raise InputError(f"{path} must be a string, a number, or a list of these, got {type(inner).__name__} {inner!r}")


def _check_name(path: str, name: str, known: Mapping[str, Any], *, allow_code: bool) -> None:
    if name in known or (path == "model.name" and name.startswith(models.PREFIXES)):
        return
    if name.startswith(GIVEN):
        kind = name.removeprefix(GIVEN)
        raise InputError(f"{path}: {kind} was passed to fit() as an object, which a recipe alone cannot recreate")
    if "." in name or ":" in name:
        with input_errors(path):
            import_name(name, allow_code=allow_code)
        return
    lookup(name, known, path)


def _check_options(path: str, options: Mapping[str, Any], kind: Callable[..., Any]) -> None:
    accepted = [name for name in inspect.signature(kind).parameters if name != "num_classes"]
    for name in options:
        if name not in accepted:
            allowed = [f"{path}.{option}" for option in accepted]
            hint = did_you_mean(f"{path}.{name}", allowed)
            raise InputError(f"{path}.{name} is not known; allowed are {', '.join(allowed)}{hint}")
