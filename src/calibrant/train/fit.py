"""From a recipe to a run folder."""

import contextlib
import logging
import os
import platform
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import lightning.pytorch as lightning
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from calibrant import __version__
from calibrant.audit import audit
from calibrant.checks import whole
from calibrant.data import DataSet, Masks
from calibrant.errors import UNFIT, InputError, Terminated, input_errors
from calibrant.models import needs
from calibrant.posthoc import TemperatureScaling
from calibrant.posthoc.temperature import Criterion
from calibrant.predictions import Chunk, Predictions, write_npz
from calibrant.recipes import Recipe
from calibrant.runs import Environment, Run, RunFolder, RunResult
from calibrant.train.batches import Batches, feed_of
from calibrant.train.checkpoints import load_weights, newest_checkpoint
from calibrant.train.engine import Keeper, Module, Writer, validations
from calibrant.train.predictor import DensePredictions, Predictor, draw_pixels
from calibrant.train.preparing import Prepared, check, prepare, take_given, threads_of
from calibrant.train.progress import Progress
from calibrant.train.trackers import Tracking, make_trackers

#: Resamples per interval of a run's measures.
RESAMPLES = 200


def fit(
    recipe: str | Path | Recipe | Mapping[str, Any],
    folder: str | Path | RunFolder | None = None,
    *,
    force: bool = False,
    quiet: bool = False,
    allow_code: bool = False,
    threads: int | None = None,
    group: str | None = None,
    watch: Callable[[Mapping[str, float]], None] | None = None,
    **fields: Any,
) -> Run | None:
    """Train, resume training, or return a finished run.

    Args:
        recipe: Name of a built-in recipe, a .yaml, a mapping of fields, or a recipe.
        folder: The run folder, ``runs/RECIPE/LOSS-seedN`` if not given. An interrupted run is resumed, a finished one is
            returned.
        force: Start over.
        quiet: Show no progress.
        allow_code: Allow code from outside calibrant in the recipe.
        threads: Number of threads. If not given, small networks use one, unless OMP_NUM_THREADS is set.
        group: What experiment trackers file the run under, such as the name of a study; the recipe's name if not given.
        watch: Called with the last row of the history after each epoch; an error that it raises ends the run, which can be
            resumed.
        **fields: Fields of the recipe, as in :meth:`calibrant.train.Recipe.load`: ``loss="mbls"``. ``model`` and ``loss``
            may also be modules, and ``data`` samples (see :func:`calibrant.data.dataset_from`), such as a pair of tensors.
            A network passed in ends up with the weights of the run.

    Returns:
        The run; None in all but the first process of a distributed job.

    Raises:
        InputError: If something is wrong with the recipe, or the folder holds something else.
    """
    with input_errors():
        whole("`threads`", 1 if threads is None else threads, 1)
    named, given = take_given(fields)
    cleared = {name: replace(getattr(Recipe(), name)) for name in given}  # drop the options of what the recipe names
    recipe = Recipe.load(replace(Recipe.load(recipe), **cleared), **named) if given else Recipe.load(recipe, **named)
    check(recipe, allow_code=allow_code, given=given)
    folder = RunFolder(folder or RunFolder.usual(recipe))
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0 and int(os.environ.get("NODE_RANK", "0")) == 0
    if first and _settled(recipe, folder, force=force):
        folder.tidy()
        if folder.result().criterion != recipe.temperature:
            with folder.claimed():
                _rescale(recipe, folder)
        return Run.load(folder)
    prepared = prepare(recipe, allow_code=allow_code, given=given)
    keeper = Keeper(folder, recipe.select, watch)
    tracking = Tracking(keeper, recipe)
    trainer = make_trainer(recipe, [keeper, tracking, *([] if quiet else [Progress()])], folder.path)
    _enough_for(trainer.world_size, recipe, prepared.data)
    # Nothing is written before this: a start that fails leaves nothing behind.
    with threads_of(recipe, prepared.operations, threads), folder.claimed() if first else contextlib.nullcontext():
        if first and _settled(recipe, folder, force=force):  # by another process in the meantime
            _rescale(recipe, folder)
            return Run.load(folder)
        if first:
            _start(recipe, folder, prepared.data, force=force)
            wanted = recipe.trainer.get("logger")
            tracking.trackers = make_trackers(wanted, folder, group=group or recipe.name, allow_code=allow_code)
        with tracking.running():
            return _train(recipe, folder, prepared, trainer, tracking)


def _train(
    recipe: Recipe, folder: RunFolder, prepared: Prepared, trainer: lightning.Trainer, tracking: Tracking
) -> Run | None:
    keeper = tracking.keeper
    module = Module(recipe, prepared.network, prepared.loss, prepared.data)
    checkpoint = newest_checkpoint(folder, recipe, say=trainer.is_global_zero)
    if trainer.is_global_zero and checkpoint != folder.checkpoint("last"):
        folder.checkpoint("last").unlink(missing_ok=True)  # otherwise it would replace a good previous one
    try:
        with _trainer_errors():
            trainer.fit(module, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True)
    except Terminated:
        raise
    except SystemExit:  # what Lightning turns signals into
        if trainer.received_sigterm:
            raise Terminated from None
        if trainer.interrupted:
            raise KeyboardInterrupt from None
        raise
    except UNFIT as error:
        if checkpoint is None or keeper.begun:
            raise
        raise InputError(
            f"{checkpoint} does not fit its run ({type(error).__name__}: {' '.join(str(error).split())}); pass `force=True` "
            "to start over"
        ) from error
    if not trainer.is_global_zero:
        return None
    if keeper.epochs < recipe.epochs:
        by = "trainer.max_time" if recipe.trainer.get("max_time") else "the trainer"
        done = f"{keeper.epochs} of {recipe.epochs} epochs"
        raise InputError(f"{folder} was stopped by {by} after {done}; run the same command again to resume")
    keeper.write()  # what a killed process did not get to
    return finish(recipe, folder, prepared, module.device, tracking)


def make_trainer(recipe: Recipe, callbacks: list[Any], folder: Path | None) -> lightning.Trainer:
    """Lightning's trainer, with the recipe's options.

    Raises:
        InputError: If one of them makes no sense, at least on this machine.
    """
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)  # calibrant reports the rest itself
    options = {**recipe.trainer, "logger": False}  # trackers get the rows of the history
    with warnings.catch_warnings(), input_errors("trainer", unfit=True), _trainer_errors():
        warnings.simplefilter("ignore")
        return lightning.Trainer(
            max_epochs=recipe.epochs,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=max(1, int(recipe.validate_every)),
            default_root_dir=folder,
            plugins=Writer(),
            **options,
        )


def _enough_for(processes: int, recipe: Recipe, data: DataSet) -> None:
    """Refuse fewer samples than processes: those without any would leave the others waiting."""
    for what, samples, cure in (
        ("the validation part", len(data.validation), "`data.validation`"),
        ("a batch of the training part", min(recipe.batch_size, len(data.train)), "`batch_size`"),
    ):
        if samples < processes:
            few = f"{what} has fewer samples ({samples}) than there are processes ({processes})"
            raise InputError(f"{few}; use fewer `trainer.devices`, or set a larger {cure}")


@contextlib.contextmanager
def _trainer_errors() -> Iterator[None]:
    """Turn Lightning's complaints about its options into input errors, and hide those about its own code."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*")
            yield
    except MisconfigurationException as error:
        raise InputError(f"trainer: {' '.join(str(error).split())}") from error


# The folder


def _settled(recipe: Recipe, folder: RunFolder, *, force: bool) -> bool:
    """Whether there is nothing left to do.

    Raises:
        InputError: If something else is there that would be lost.
    """
    if folder.foreign:
        raise InputError(f"{folder} exists and is not a run folder; pass another `out`")
    if force or not folder.started or not folder.trained:
        return False
    difference = folder.recipe().difference(recipe)
    if difference:
        raise InputError(
            f"{folder} holds a run of another recipe ({difference}); pass another `out`, or `force=True` to start over"
        )
    return folder.finished


def _rescale(recipe: Recipe, folder: RunFolder) -> None:
    """Report the temperature by the requested criterion; both were measured."""
    result = folder.result()
    if result.criterion != recipe.temperature:
        scaled = result.scaled_by(recipe.temperature)
        folder.drop_beyond()  # measured with the other temperature
        folder.write_recipe(replace(folder.recipe(), temperature=recipe.temperature))
        folder.write_result(scaled)


def _start(recipe: Recipe, folder: RunFolder, data: DataSet, *, force: bool) -> None:
    """Set up the folder for this run."""
    if force or not folder.trained:
        folder.clear()
    else:
        same_data(folder, data)
    before = folder.environment()
    folder.write_recipe(recipe)
    folder.write_environment(_describe(recipe, data, before))
    if data.split:
        folder.write_split({name: indices.numpy() for name, indices in data.split.items()})


def _describe(recipe: Recipe, data: DataSet, before: Environment | None) -> Environment:
    """What the run depends on: versions, machine, data."""
    packages = ("lightning", "torchmetrics")
    now = Environment(
        id=secrets.token_hex(8) if before is None or not before.id else before.id,
        data=_fingerprints(data),
        train_counts=data.train_counts,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
        seed=recipe.seed,
        versions={
            "calibrant": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            **{name: version(name) for name in packages},
        },
        machine={
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        },
    )
    return now if before is None else replace(now, started=before.started, resumed=[*before.resumed, now.started])


def _fingerprints(data: DataSet) -> dict[str, dict[str, int | str]]:
    parts = ("train", "validation", "test")
    return {name: {"samples": len(data.part(name)), "checksum": data.part(name).checksum()} for name in parts}


def same_data(folder: RunFolder, data: DataSet) -> None:
    """Refuse data that differs from what a run was started on."""
    before = folder.environment()
    if before is not None and before.data != _fingerprints(data):
        raise InputError(f"{folder} was started on other data (see its environment.json); restore it, or start over")


# Finishing


def _stand_in(recipe: Recipe) -> str:
    """A remark where validation samples stand in for the test set."""
    return " (on held-out validation samples)" if recipe.data.test_from_validation else ""


def finish(recipe: Recipe, folder: RunFolder, prepared: Prepared, device: torch.device, tracking: Tracking) -> Run:
    """Predict with the selected checkpoint, measure, and write predictions and results."""
    data, network, loss, *_ = prepared
    try:
        epoch = load_weights(recipe, folder, network)
    except InputError as error:
        raise InputError(f"{error}; pass `force=True` to train again") from error
    predictor = Predictor(recipe, data, network.to(device).eval(), loss, device)
    live: dict[str, DensePredictions] = {}
    for name in ("validation", "test"):
        part, chunks = data.part(name), list[Chunk]()
        stream: Iterable[Chunk] = chunks
        if isinstance(part, Masks):
            live[name] = DensePredictions(predictor, name, part)
            stream = live[name].grid(recipe.data.stride)
        else:
            chunks.append(Chunk(0, *predictor.in_order(part)))
        counts = data.train_counts
        write_npz(folder.predictions(name), stream, len(part), classes=data.classes, train_counts=counts, force=True)
    if live:
        draw_pixels(predictor, live["test"].part, folder.figures)
    result = RunResult(
        recipe=recipe.name,
        loss=recipe.loss.name,
        seed=recipe.seed,
        epochs=recipe.epochs,
        reported=f"{recipe.select} checkpoint, epoch {epoch + 1} of {recipe.epochs}{_stand_in(recipe)}",
        parameters=sum(p.numel() for p in network.parameters()),
        **measure_run(folder, recipe.num_bins, live),
    ).scaled_by(recipe.temperature)
    tracking.finish(result, folder)  # before the run is finished: whatever a killed process did not get to is done again
    folder.write_result(result)
    return Run.load(folder)


def measure_run(folder: RunFolder, num_bins: int, live: Mapping[str, Predictions]) -> dict[str, Any]:
    """Measures of validation and test predictions, and of test after temperature scaling by both criteria on validation.

    Predictions in ``live`` are measured on all pixels, not from the file, which holds only a grid of them.
    """
    files = {part: folder.open(part) for part in ("validation", "test")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network that is always correct on few samples has no best temperature
        held_out = files["validation"].read_all()
        own, other = (TemperatureScaling(criterion=c, num_bins=num_bins).fit(*held_out) for c in get_args(Criterion))
    options: dict[str, Any] = {"num_bins": num_bins, "resamples": RESAMPLES}
    sources = {**files, **live}
    found: dict[str, Any] = {part: audit(source, part, **options) for part, source in sources.items()}
    return {
        **found,
        "criterion": own.criterion,
        "temperature": float(own.temperature_),
        "test_after_temperature": audit(sources["test"], "test after temperature", transform=own.transform, **options),
        "other_temperature": float(other.temperature_),
        "test_after_other": audit(sources["test"], "test after temperature", transform=other.transform, **options),
    }


# Dry run


def dry_run(recipe: Recipe, *, allow_code: bool = False) -> dict[str, Any]:
    """Check the recipe, run two batches of training and validation, and estimate the training time.

    Returns:
        Samples, parameters, seconds per batch, and hours for the whole run on this machine.
    """
    check(recipe, allow_code=allow_code)
    data, network, loss, operations, _ = prepare(recipe, allow_code=allow_code)
    module = Module(replace(recipe, epochs=1), network, loss, data)
    clock = _Clock()
    options = {k: v for k, v in recipe.trainer.items() if k not in ("devices", "num_nodes", "strategy", "logger")}
    options |= {"limit_train_batches": 2, "limit_val_batches": 2, "devices": 1}
    trainer = make_trainer(replace(recipe, epochs=1, validate_every=1, trainer=options), [clock], None)
    with threads_of(recipe, operations, None), _trainer_errors():
        trainer.fit(module)
    feeds = (feed_of(recipe, data, needs(network), train=train) for train in (True, False))
    training = Batches(data.train, recipe.batch_size, next(feeds), drop_last=recipe.drop_last)
    validating = Batches(data.validation, recipe.eval_batch_size, next(feeds))
    step, look = clock.mean("train"), clock.mean("validation")
    looks = len(validations(len(training), recipe.validate_every)) / max(1, recipe.validate_every)
    total = recipe.epochs * (len(training) * step + len(validating) * look * looks)
    return {
        "train": len(data.train),
        "validation": len(data.validation),
        "test": len(data.test),
        "classes": data.num_classes,
        "parameters": sum(p.numel() for p in network.parameters()),
        "batches": len(training),
        "seconds_per_batch": step,
        "hours": total / 3600,
    }


class _Clock(lightning.Callback):
    """Times batches; of two, the second, as the first is a warm-up."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"train": [], "validation": []}

    def on_train_batch_start(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.times["train"].append(time.perf_counter() - self.start)

    def on_validation_batch_start(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.times["validation"].append(time.perf_counter() - self.start)

    def mean(self, part: str) -> float:
        times = self.times[part][1:] or self.times[part]
        return sum(times) / max(1, len(times))
