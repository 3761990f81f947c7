"""From a recipe to a run folder."""

import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
from lightning.pytorch import loggers as lightning_loggers
from torch import nn

from calibrant import __version__
from calibrant.audit import audit
from calibrant.data import DataSet, Masks
from calibrant.errors import InputError, input_errors
from calibrant.losses import Loss
from calibrant.models import needs
from calibrant.posthoc import TemperatureScaling
from calibrant.predictions import Chunk, Predictions, write_npz
from calibrant.recipes import Recipe
from calibrant.runs import Environment, Run, RunFolder, RunResult
from calibrant.train.batches import Batches, feed_of
from calibrant.train.checkpoints import load_weights, newest_checkpoint
from calibrant.train.engine import Keeper, Module
from calibrant.train.options import check_trainer
from calibrant.train.predictor import DensePredictions, Predictor, draw_pixels
from calibrant.train.progress import Bar


def fit(
    recipe: Recipe, folder: str | Path | RunFolder, *, force: bool = False, quiet: bool = False, allow_code: bool = False
) -> Run | None:
    """Train, resume training, or return a finished run.

    Args:
        recipe: The recipe.
        folder: The run folder. An interrupted run is resumed, a finished one is returned.
        force: Start over.
        quiet: Show no progress bar.
        allow_code: Allow code from outside calibrant in the recipe.

    Returns:
        The run; None in all but the first process of a distributed job.

    Raises:
        InputError: If the folder holds something else.
    """
    check(recipe, allow_code=allow_code)
    folder = RunFolder(folder)
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0 and int(os.environ.get("NODE_RANK", "0")) == 0
    if first and _prepare(recipe, folder, force=force):
        return Run.load(folder)
    data, network, loss = prepare(recipe, allow_code=allow_code)
    if first:
        _describe(recipe, folder, data)
    module = Module(recipe, network, loss, data)
    trainer = make_trainer(recipe, [Keeper(folder, recipe.select), *([] if quiet else [Bar()])], folder.path)
    checkpoint = newest_checkpoint(folder, recipe, say=first)
    trainer.fit(module, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if not trainer.is_global_zero:
        return None
    return finish(recipe, folder, data, network, loss, module.device)


def check(recipe: Recipe, *, allow_code: bool = False) -> None:
    """Refuse a recipe that cannot work, options of the trainer included."""
    recipe.check(allow_code=allow_code)
    check_trainer(recipe.trainer)


def prepare(recipe: Recipe, *, allow_code: bool = False) -> tuple[DataSet, nn.Module, Loss]:
    """Data, network and loss of a recipe, all labels looked at before hours are spent on them.

    Raises:
        InputError: If something is wrong with them.
    """
    with input_errors():
        data = recipe.load_data(allow_code=allow_code)
        data.train.check_augmentation(recipe.augmentation)
        data.check()
        return data, *build(recipe, data, allow_code=allow_code)


def build(recipe: Recipe, data: DataSet, *, allow_code: bool = False) -> tuple[nn.Module, Loss]:
    """Network and loss of a recipe, the same weights for the same seed."""
    torch.manual_seed(recipe.seed)
    network = recipe.build_model(data.num_classes, data.facts, allow_code=allow_code)
    if any(isinstance(p, nn.UninitializedParameter) for p in network.parameters()):
        feed = feed_of(recipe, data, needs(network))
        sample = next(iter(Batches(data.validation, 2, replace(feed, workers=0))))[0]
        with torch.no_grad():
            network(sample)
    if recipe.model.compile:
        network.compile()
    return network, recipe.build_loss(data.num_classes, data.ignore_index, allow_code=allow_code)


def make_trainer(recipe: Recipe, callbacks: list[Any], folder: Path | None) -> lightning.Trainer:
    """Lightning's trainer, with the recipe's options."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)  # calibrant reports the rest itself
    options = {"logger": False, **recipe.trainer}
    if isinstance(options["logger"], str):
        options["logger"] = _logger(options["logger"], folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightning.Trainer(
            max_epochs=recipe.epochs,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            check_val_every_n_epoch=recipe.validate_every,
            default_root_dir=folder,
            **options,
        )


def _logger(name: str, folder: Path | None) -> Any:
    kinds = {"csv": "CSVLogger", "tensorboard": "TensorBoardLogger"}
    kind = getattr(lightning_loggers, kinds.get(name, name), None)
    if kind is None:
        raise InputError(f"trainer.logger must be csv, tensorboard or the name of one of lightning's loggers, got {name!r}")
    return kind(save_dir=str(folder or "."), name="logs")


# The folder


def _prepare(recipe: Recipe, folder: RunFolder, *, force: bool) -> bool:
    """Start or resume; True if there is nothing left to do."""
    if folder.foreign:
        raise InputError(f"{folder} exists and is not a run folder; pass another `out`")
    if force:
        folder.clear()
    if folder.started:
        difference = folder.recipe().difference(recipe)
        if difference:
            raise InputError(
                f"{folder} holds a run of another recipe ({difference}); pass another `out`, or `force=True` to start over"
            )
        if folder.finished:
            return True
    folder.write_recipe(recipe)
    return False


def _describe(recipe: Recipe, folder: RunFolder, data: DataSet) -> None:
    """Write what the run depends on: versions, machine, data."""
    packages = ("lightning", "torchmetrics")
    now = Environment(
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
    before = folder.environment()
    if before is not None:
        same_data(folder, data)
        now = replace(now, started=before.started, resumed=[*before.resumed, now.started])
    folder.write_environment(now)
    if data.split:
        folder.write_split({name: indices.numpy() for name, indices in data.split.items()})


def _fingerprints(data: DataSet) -> dict[str, dict[str, int | str]]:
    parts = ("train", "validation", "test")
    return {name: {"samples": len(data.part(name)), "checksum": data.part(name).checksum()} for name in parts}


def same_data(folder: RunFolder, data: DataSet) -> None:
    """Refuse data that differs from what a run was started on."""
    before = folder.environment()
    if before is not None and before.data != _fingerprints(data):
        raise InputError(f"{folder} was started on other data (see its environment.json); restore it, or start over")


# Finishing


def finish(recipe: Recipe, folder: RunFolder, data: DataSet, network: nn.Module, loss: Loss, device: torch.device) -> Run:
    """Predict with the selected checkpoint, measure, and write predictions and results."""
    epoch = load_weights(recipe, folder, network)
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
    folder.write_result(
        RunResult(
            recipe=recipe.name,
            loss=recipe.loss.name,
            seed=recipe.seed,
            epochs=recipe.epochs,
            reported=f"{recipe.select} checkpoint, epoch {epoch + 1} of {recipe.epochs}",
            parameters=sum(p.numel() for p in network.parameters()),
            **measure_run(folder, recipe.num_bins, live),
        )
    )
    return Run.load(folder)


def measure_run(folder: RunFolder, num_bins: int, live: Mapping[str, Predictions], resamples: int = 200) -> dict[str, Any]:
    """Measures of validation and test predictions, and of test after temperature scaling on validation.

    Predictions in ``live`` are measured on all pixels, not from the file, which holds only a grid of them.
    """
    files = {part: folder.open(part) for part in ("validation", "test")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network that is always correct on few samples has no best temperature
        scaling = TemperatureScaling().fit(*files["validation"].read_all())
    options: dict[str, Any] = {"num_bins": num_bins, "resamples": resamples}
    sources = {**files, **live}
    found: dict[str, Any] = {part: audit(source, part, **options) for part, source in sources.items()}
    after = audit(sources["test"], "test after temperature", transform=scaling.transform, **options)
    return {**found, "temperature": float(scaling.temperature_), "test_after_temperature": after}


# Dry run


def dry_run(recipe: Recipe, *, allow_code: bool = False) -> dict[str, Any]:
    """Check the recipe, run two batches of training and validation, and estimate the training time.

    Returns:
        Samples, parameters, seconds per batch, and hours for the whole run on this machine.
    """
    check(recipe, allow_code=allow_code)
    data, network, loss = prepare(recipe, allow_code=allow_code)
    module = Module(replace(recipe, epochs=1), network, loss, data)
    clock = _Clock()
    options = {k: v for k, v in recipe.trainer.items() if k not in ("devices", "num_nodes", "strategy", "logger")}
    options |= {"limit_train_batches": 2, "limit_val_batches": 2, "devices": 1}
    make_trainer(replace(recipe, epochs=1, validate_every=1, trainer=options), [clock], None).fit(module)
    feeds = (feed_of(recipe, data, needs(network), train=train) for train in (True, False))
    training = Batches(data.train, recipe.batch_size, next(feeds), drop_last=recipe.drop_last)
    validating = Batches(data.validation, recipe.eval_batch_size, next(feeds))
    step, look = clock.mean("train"), clock.mean("validation")
    total = recipe.epochs * (len(training) * step + len(validating) * look / recipe.validate_every)
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
