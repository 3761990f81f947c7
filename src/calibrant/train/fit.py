"""From a recipe to a run folder that holds the proof."""

import json
import logging
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
import torchmetrics
from lightning.pytorch import loggers as lightning_loggers
from torch import nn

from calibrant import __version__, audit
from calibrant.data import DataSet, Masks
from calibrant.extras import require
from calibrant.losses import Loss
from calibrant.posthoc import TemperatureScaling
from calibrant.predictions import (
    Chunk,
    InputError,
    Predictions,
    input_errors,
    open_predictions,
    read_json,
    replacing,
    write_npz,
)
from calibrant.train.batches import Batches, check_augmentation
from calibrant.train.engine import FORMAT, Keeper, Module
from calibrant.train.predictor import DensePredictions, Predictor, draw_pixels
from calibrant.train.progress import Bar
from calibrant.train.recipe import Recipe

#: Fields that say where and how fast, not what: a run goes on when they change.
CIRCUMSTANCES = (("about",), ("data", "root"), ("data", "workers"), ("data", "download"), ("trainer",))
#: What a run, and what is done with it later, leaves in its folder.
FOLDERS = ("checkpoints", "predictions", "logs", "figures")
FILES = (
    *("metrics.json", "history.csv", "learned.npz", "split.npz", "environment.json", "recipe.yaml"),
    *("error.txt", "ood.json", "ood-*.png", "shift.json", "shift.png"),
)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: Where it is.
        recipe: What was done.
        metrics: What came out: ``metrics["test"]["ece"]`` and so on, before and after temperature scaling.
    """

    folder: Path
    recipe: dict[str, Any]
    metrics: dict[str, Any]

    @staticmethod
    def load(folder: str | Path) -> "Run":
        """Read a run folder.

        Raises:
            InputError: If it is not one, or the run is not finished.
        """
        folder = Path(folder)
        if not (folder / "recipe.yaml").exists():
            raise InputError(f"{folder} is not a run folder: it has no recipe.yaml")
        if not (folder / "metrics.json").exists():
            raise InputError(f"{folder} is not finished: run the same calibrant train command again to go on")
        recipe = require("yaml", "reading a recipe").safe_load((folder / "recipe.yaml").read_text())
        return Run(folder, recipe, read_json(folder / "metrics.json"))


def fit(
    recipe: Recipe, folder: str | Path, *, force: bool = False, quiet: bool = False, allow_code: bool = False
) -> Run | None:
    """Train, or go on training, or return what is there already.

    Args:
        recipe: What to do.
        folder: Where the run goes. A run that was interrupted is resumed, a finished one is returned as it is.
        force: Start over.
        quiet: No progress bar.
        allow_code: Let the recipe name code outside calibrant.

    Returns:
        The run; None in all but the first process of a distributed job.

    Raises:
        InputError: If the folder holds something else.
    """
    recipe.check(allow_code=allow_code)
    folder = Path(folder)
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0 and int(os.environ.get("NODE_RANK", "0")) == 0
    if first:
        finished = _prepare(recipe, folder, force=force)
        if finished is not None:
            return finished
    data, network, loss = load(recipe, allow_code=allow_code)
    if first:
        _describe(recipe, folder, data)
    module = Module(recipe, network, loss, data)
    keeper = Keeper(folder, recipe.select)
    trainer = make_trainer(recipe, [keeper, *([] if quiet else [Bar()])], folder)
    checkpoint = newest_checkpoint(folder, recipe, say=first)
    trainer.fit(module, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=True)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if not trainer.is_global_zero:
        return None
    return finish(recipe, folder, data, network, module.device)


def load(recipe: Recipe, *, allow_code: bool = False) -> tuple[DataSet, nn.Module, Loss]:
    """Data, network and loss of a recipe, all labels looked at before hours are spent on them.

    Raises:
        InputError: If something is wrong with them.
    """
    with input_errors():
        data = recipe.load_data(allow_code=allow_code)
        check_augmentation(recipe.augmentation, data.train)
        data.check()
        return data, *build(recipe, data, allow_code=allow_code)


def build(recipe: Recipe, data: DataSet, *, allow_code: bool = False) -> tuple[nn.Module, Loss]:
    """Network and loss of a recipe, the same weights for the same seed."""
    torch.manual_seed(recipe.seed)
    network = recipe.build_model(data.num_classes, data.facts, allow_code=allow_code)
    if any(isinstance(p, nn.UninitializedParameter) for p in network.parameters()):
        sample = next(iter(Batches(data, data.validation, 2, size=recipe.data.size)))[0]
        with torch.no_grad():
            network(sample)
    if recipe.model.compile:
        network.compile()
    return network, recipe.build_loss(data.num_classes, data.ignore_index, allow_code=allow_code)


def make_trainer(recipe: Recipe, callbacks: list[Any], folder: Path | None) -> lightning.Trainer:
    """Lightning's trainer, with the recipe's options."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)  # what is left is ours to say
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


def _prepare(recipe: Recipe, folder: Path, *, force: bool) -> Run | None:
    """Start, resume, or find that there is nothing left to do."""
    yaml = require("yaml", "writing a recipe")
    text = yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True)
    known = folder / "recipe.yaml"
    if not known.exists() and folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists and is not a run folder; choose another --out")
    if force:
        for name in FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in (path for name in FILES for path in folder.glob(name)):
            path.unlink()
    if known.exists():
        difference = _difference(yaml.safe_load(known.read_text()), recipe.to_dict())
        if difference:
            raise InputError(
                f"{folder} holds a run of another recipe ({difference}); choose another --out, or start over with --force"
            )
        if (folder / "metrics.json").exists():
            return Run.load(folder)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    with replacing(known, force=True) as temporary:
        temporary.write_text(text)
    return None


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first field in which two recipes differ, beyond circumstances; what one does not have is its default."""

    def fields(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
        if isinstance(value, dict) and value:
            return {k: v for key, inner in value.items() for k, v in fields(inner, (*path, key)).items()}
        return {path: value}

    default, before, after = (fields(json.loads(json.dumps(part))) for part in (Recipe().to_dict(), old, new))
    for path in dict.fromkeys([*before, *after]):
        if any(path[: len(c)] == c for c in CIRCUMSTANCES):
            continue
        a, b = (part.get(path, default.get(path)) for part in (before, after))
        if a != b and not (a in ({}, [], None) and b in ({}, [], None)):
            return f"{'.'.join(path)} was {a!r}, now {b!r}"
    return ""


def _describe(recipe: Recipe, folder: Path, data: DataSet) -> None:
    """Write what the run depends on: versions, machine, data."""
    content = {
        "calibrant": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "torchmetrics": torchmetrics.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "seed": recipe.seed,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "data": _fingerprints(data),
        "train_counts": data.train_counts,
    }
    path = folder / "environment.json"
    if path.exists():
        before = json.loads(path.read_text())
        same_data(folder, data)
        content["resumed"] = [*before.get("resumed", []), content["started"]]
        content["started"] = before["started"]
    with replacing(path, force=True) as temporary:
        temporary.write_text(json.dumps(content, indent=1))
    if data.split:
        arrays: dict[str, Any] = {name: indices.numpy() for name, indices in data.split.items()}
        with replacing(folder / "split.npz", force=True) as temporary:
            np.savez(temporary, **arrays)


def _fingerprints(data: DataSet) -> dict[str, Any]:
    parts = (("train", data.train), ("validation", data.validation), ("test", data.test))
    return {name: {"samples": len(part), "checksum": part.checksum()} for name, part in parts}


def same_data(folder: Path, data: DataSet) -> None:
    """Refuse data other than that which a run was started on."""
    path = folder / "environment.json"
    if json.loads(path.read_text())["data"] != _fingerprints(data):
        raise InputError(f"{folder} was started on other data (see {path}); restore it, or start over with --force")


# Checkpoints


def newest_checkpoint(folder: Path, recipe: Recipe, *, say: bool = True) -> Path | None:
    """The newest checkpoint that is whole and belongs to this run; others are named and passed over."""
    for name in ("last.ckpt", "previous.ckpt"):
        path = folder / "checkpoints" / name
        if not path.exists():
            continue
        try:
            load_checkpoint(path, recipe)
        except ValueError as error:
            if say:
                warnings.warn(f"{error}; it is passed over", UserWarning, stacklevel=3)
            continue
        return path
    return None


def load_checkpoint(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Read a checkpoint without running code.

    Raises:
        ValueError: If it is cut short or foreign.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} cannot be read, it may be cut short ({type(error).__name__})") from error
    mark = content.get("calibrant") if isinstance(content, dict) else None
    if not isinstance(mark, dict) or mark.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of calibrant")
    difference = _difference(mark["recipe"], recipe.to_dict())
    if difference:
        raise ValueError(f"{path} belongs to another recipe ({difference})")
    return content


def load_weights(recipe: Recipe, folder: Path, network: nn.Module) -> int:
    """Give a network the weights of the checkpoint that is reported, and return its epoch."""
    best = folder / "checkpoints" / "best.ckpt"
    content = load_checkpoint(best if recipe.select != "last" and best.exists() else best.with_name("last.ckpt"), recipe)
    weights = {k.removeprefix("network."): v for k, v in content["state_dict"].items() if k.startswith("network.")}
    network.load_state_dict(weights)
    return int(content["epoch"])


# The end


def finish(recipe: Recipe, folder: Path, data: DataSet, network: nn.Module, device: torch.device) -> Run:
    """Predict with the selected checkpoint, measure, and write ``predictions`` and ``metrics.json``."""
    epoch = load_weights(recipe, folder, network)
    predictor, live = Predictor(recipe, data, network.to(device).eval(), device), {}
    for part in ("validation", "test"):
        chunks: Iterable[Chunk]
        if isinstance(getattr(data, part), Masks):
            live[part] = DensePredictions(predictor, part)
            chunks = live[part].grid(recipe.data.stride)
        else:
            chunks = [Chunk(0, *predictor.in_order(getattr(data, part)))]
        write_npz(
            folder / "predictions" / f"{part}.npz",
            chunks,
            len(getattr(data, part)),
            classes=data.classes,
            train_counts=data.train_counts,
            force=True,
        )
    if live:
        draw_pixels(predictor, live["test"].part, folder / "figures")
    metrics = {
        "recipe": recipe.name,
        "loss": recipe.loss.name,
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "reported": f"{recipe.select} checkpoint, epoch {epoch + 1} of {recipe.epochs}",
        "parameters": sum(p.numel() for p in network.parameters()),
        **measure_run(folder, recipe.num_bins, live),
    }
    with replacing(folder / "metrics.json", force=True) as temporary:
        temporary.write_text(json.dumps(metrics, indent=1))
    return Run.load(folder)


def measure_run(folder: Path, num_bins: int, live: Mapping[str, Predictions], resamples: int = 200) -> dict[str, Any]:
    """Measures of validation and test predictions, and of test after temperature scaling on validation.

    What is in ``live`` is measured from there, on all pixels, instead of from the file, which holds a grid of them.
    """
    files = {part: open_predictions(folder / "predictions" / f"{part}.npz") for part in ("validation", "test")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a network that is always right on few samples has no best temperature
        scaling = TemperatureScaling().fit(*files["validation"].load())
    options: dict[str, Any] = {"num_bins": num_bins, "resamples": resamples}
    sources = {**files, **live}
    found: dict[str, Any] = {part: audit.measure(source, part, **options).to_dict() for part, source in sources.items()}
    after = audit.measure(sources["test"], "test after temperature", transform=scaling.transform, **options)
    return {**found, "temperature": float(scaling.temperature_), "test_after_temperature": after.to_dict()}


# Trying it out


def dry_run(recipe: Recipe, *, allow_code: bool = False) -> dict[str, Any]:
    """Resolve everything, run two batches of training and validation, and estimate the time.

    Returns:
        Samples, parameters, seconds per batch, and hours for the whole run on this machine.
    """
    recipe.check(allow_code=allow_code)
    data, network, loss = load(recipe, allow_code=allow_code)
    module = Module(replace(recipe, epochs=1), network, loss, data)
    clock = _Clock()
    options = {k: v for k, v in recipe.trainer.items() if k not in ("devices", "num_nodes", "strategy", "logger")}
    options |= {"limit_train_batches": 2, "limit_val_batches": 2, "devices": 1}
    make_trainer(replace(recipe, epochs=1, validate_every=1, trainer=options), [clock], None).fit(module)
    training = Batches(data, data.train, recipe.batch_size, train=True, drop_last=recipe.drop_last)
    validating = Batches(data, data.validation, recipe.eval_batch_size)
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
    """Times batches; of two, the second, for the first one warms up."""

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
