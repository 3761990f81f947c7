"""The Lightning module, and the callback that keeps history and checkpoints."""

import csv
import io
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
from torch import Tensor, nn

from calibrant.data import DataSet, Masks
from calibrant.losses import AdaptiveLoss, Loss
from calibrant.metrics import CalibrationPanel, PanelResult
from calibrant.predictions import replacing
from calibrant.train.batches import Batch, Batches
from calibrant.train.recipe import Recipe, Schedule

#: What marks a checkpoint as ours.
FORMAT = "calibrant run, version 1"


class DivergedError(RuntimeError):
    """The loss is no longer a finite number."""


class Module(lightning.LightningModule):
    """A network and its loss, trained as a recipe says.

    Args:
        recipe: The recipe.
        network: The network.
        loss: The loss, whose learned state is part of the checkpoint.
        data: The data set.
    """

    def __init__(self, recipe: Recipe, network: nn.Module, loss: Loss, data: DataSet) -> None:
        super().__init__()
        self.recipe, self.network, self.loss, self.data = recipe, network, loss, data
        # In a tuple, so that it is no part of the module, and its sums no part of the checkpoint.
        self._panel = (CalibrationPanel(data.num_classes, recipe.num_bins, ignore_index=data.ignore_index),)
        self.result: PanelResult | None = None
        self.batches: dict[str, Batches] = {}
        self._losses: list[Tensor] = []
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._confidence: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.network(x)
        return logits

    # Data

    def _batches(self, part: str, *, train: bool) -> Batches:
        recipe = self.recipe
        self.batches[part] = Batches(
            self.data,
            getattr(self.data, part),
            recipe.batch_size if train else recipe.eval_batch_size,
            seed=recipe.seed,
            train=train,
            augmentation=recipe.augmentation,
            drop_last=train and recipe.drop_last,
            size=recipe.data.size,
            longest=recipe.data.longest,
            workers=recipe.data.workers,
            rank=self.global_rank,
            world=self.trainer.world_size,
        )
        return self.batches[part]

    def train_dataloader(self) -> Batches:
        """Batches of the training part."""
        return self._batches("train", train=True)

    def val_dataloader(self) -> Batches:
        """Batches of the validation part."""
        return self._batches("validation", train=False)

    # Training

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The recipe's optimizer; the learning rate is set before each step."""
        return make_optimizer(self.network, self.recipe)

    def on_train_epoch_start(self) -> None:
        """Everything random follows from seed and epoch: what comes is the same after a restart."""
        seed_epoch(self.recipe.seed, self.current_epoch, self.global_rank)
        self.batches["train"].epoch = self.current_epoch
        self._losses, self._started = [], time.perf_counter()
        self._confidence = None
        if isinstance(self.loss, AdaptiveLoss) and "edges" in self.loss.learned:
            self._confidence = torch.zeros(2, len(self.loss.get_buffer("edges")) + 1, device=self.device)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set the learning rate of this step."""
        del batch
        rate = learning_rate(self.recipe, self.current_epoch + batch_idx / max(1, int(self.trainer.num_training_batches)))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of a batch, such that the mean over processes is that of the whole batch."""
        x, y, whole = batch
        logits = self.network(x)
        loss: Tensor = self.loss(logits, y)
        self._losses.append(loss.detach())
        if self._confidence is not None:
            self._look_at_bins(logits.detach(), y)
        if (loss.is_cpu or batch_idx % 50 == 0) and not bool(loss.isfinite()):
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            raise DivergedError(
                f"the loss became {float(loss.detach())} in epoch {self.current_epoch}, batch {batch_idx}; lower "
                f"optimizer.lr (now {rate:g}), set trainer.gradient_clip_val, or check the inputs"
            )
        share = len(y) * self.trainer.world_size / whole
        return loss if share == 1 else share * loss

    def _look_at_bins(self, logits: Tensor, y: Tensor) -> None:
        """Confidence in the true class of training samples, by the validation bins that AdaFocal looks them up in."""
        assert self._confidence is not None  # noqa: S101
        kept = y != self.data.ignore_index
        own = logits.float().softmax(dim=1).gather(1, y.where(kept, 0).unsqueeze(1)).squeeze(1)[kept]
        place = torch.bucketize(own, self.loss.get_buffer("edges").to(own.dtype))
        self._confidence[0].index_add_(0, place, torch.ones_like(own))
        self._confidence[1].index_add_(0, place, own)

    def train_confidences(self) -> dict[str, Tensor]:
        """Mean confidence of the epoch's training samples in each bin, NaN where there were none."""
        if self._confidence is None:
            return {}
        count, total = self._confidence.cpu().double()
        return {"train_confidences": (total / count).float()}

    # Validation

    def on_validation_epoch_start(self) -> None:
        """Start anew."""
        self._panel[0].to(self.device).reset()
        self._sums = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Measure, and let an adaptive loss look."""
        del batch_idx
        x, y, _ = batch
        logits = self.network(x).float()
        if not bool(logits.isfinite().all()):
            raise DivergedError(
                f"the network gives logits that are not finite after epoch {self.current_epoch}; lower optimizer.lr, set "
                "trainer.gradient_clip_val, or check the inputs"
            )
        self._panel[0].update(logits, y)
        self._sums += torch.tensor([float(self.loss(logits, y)) * len(y), len(y)], dtype=torch.float64)
        if isinstance(self.loss, AdaptiveLoss) and not self.trainer.sanity_checking:
            self.loss.observe(logits, y)

    def on_validation_epoch_end(self) -> None:
        """Results of all processes, and the new weights of an adaptive loss."""
        if self.trainer.sanity_checking:
            return
        self.result = self._panel[0].compute()
        if isinstance(self.loss, AdaptiveLoss):
            self.loss.adapt()

    def train_loss(self) -> float:
        """Mean loss of the epoch's batches."""
        return float(torch.stack(self._losses).double().mean()) if self._losses else math.nan

    def validation_loss(self) -> float:
        """Mean loss of the validation samples of this process, with the weights it had while training."""
        return float(self._sums[0] / self._sums[1].clamp(min=1))

    def seconds(self) -> float:
        """Time since the epoch began."""
        return time.perf_counter() - self._started


class Keeper(lightning.Callback):
    """Writes history and checkpoints at the end of each epoch, so that the two always agree.

    The order is: history in memory, checkpoint ``last.ckpt`` (the one before stays as ``previous.ckpt``), then the
    files that are made from it. Whatever is killed at whatever moment, the newest complete checkpoint holds everything.

    Args:
        folder: The run folder.
        select: By what the best checkpoint is chosen.
    """

    def __init__(self, folder: Path, select: str) -> None:
        self.folder, self.select = folder, select
        self.rows: list[dict[str, float]] = []
        self.learned: dict[str, list[Tensor]] = {}
        self.best = math.inf

    def state_dict(self) -> dict[str, Any]:
        """What goes into the checkpoint."""
        return {
            "rows": self.rows,
            "learned": {name: torch.stack(path) for name, path in self.learned.items()},
            "best": self.best,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where a checkpoint was written."""
        self.rows, self.best = state_dict["rows"], state_dict["best"]
        self.learned = {name: list(path) for name, path in state_dict["learned"].items()}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Mark it as ours."""
        del trainer
        checkpoint["calibrant"] = {"format": FORMAT, "recipe": pl_module.recipe.to_dict()}

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Add the epoch."""
        assert isinstance(pl_module, Module)  # noqa: S101
        epoch = trainer.current_epoch
        self.rows = [row for row in self.rows if row["epoch"] < epoch]
        row = {"epoch": epoch, "train_loss": pl_module.train_loss(), "lr": trainer.optimizers[0].param_groups[0]["lr"]}
        result, better = pl_module.result, False
        if result is not None:
            row |= {
                "validation_loss": pl_module.validation_loss(),
                **measures(result, dense=isinstance(pl_module.data.train, Masks)),
            }
            if isinstance(pl_module.loss, AdaptiveLoss):
                state = learned_state(pl_module.loss) | pl_module.train_confidences()
                for name, value in state.items():
                    self.learned.setdefault(name, []).append(value)
                    if name in ("multipliers", "rho", "gammas"):
                        row |= {f"{name}_{what}": float(getattr(value, what)()) for what in ("min", "mean", "max")}
            scores = {
                "accuracy": -result.accuracy,
                "nll": result.nll,
                "ece": result.ece,
                "mean_iou": -result.mean_iou,
            }
            score = scores.get(self.select, -float(epoch))
            better = score < self.best
            self.best = min(score, self.best)
            pl_module.result = None
        row["seconds"] = pl_module.seconds()
        self.rows.append(row)
        self._save(trainer, better=better)
        for logger in trainer.loggers:
            logger.log_metrics({name: value for name, value in row.items() if name != "epoch"}, step=epoch)
        if trainer.is_global_zero:
            write_history(self.folder, self.rows, self.learned)

    def _save(self, trainer: lightning.Trainer, *, better: bool) -> None:
        folder = self.folder / "checkpoints"
        new = folder / "new.ckpt"
        trainer.save_checkpoint(new, weights_only=False)  # all of it; all processes take part
        if not trainer.is_global_zero:
            return
        with new.open("rb") as file:
            os.fsync(file.fileno())
        last = folder / "last.ckpt"
        if last.exists():
            last.replace(folder / "previous.ckpt")
        new.replace(last)
        if better and self.select != "last":
            temporary = folder / "best.new"
            temporary.unlink(missing_ok=True)
            os.link(last, temporary)
            temporary.replace(folder / "best.ckpt")


def measures(result: PanelResult, *, dense: bool = False) -> dict[str, float]:
    """Columns of the history."""
    names = ["accuracy", "ece", "adaptive_ece", "classwise_ece", "nll", "brier", *(["mean_iou"] if dense else [])]
    return {name: float(getattr(result, name)) for name in names}


def learned_state(loss: AdaptiveLoss) -> dict[str, Tensor]:
    """Multipliers, rho, gammas, edges: what the loss has learned, for its path over epochs."""
    return {name: loss.get_buffer(name).detach().cpu().clone() for name in loss.learned}


def write_history(folder: Path, rows: list[dict[str, float]], learned: Mapping[str, list[Tensor]]) -> None:
    """``history.csv``, and ``learned.npz`` with one row per epoch of everything an adaptive loss has learned."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    with replacing(folder / "history.csv", force=True) as temporary:
        temporary.write_text(text.getvalue())
    if learned:
        with replacing(folder / "learned.npz", force=True) as temporary:
            arrays: dict[str, Any] = {name: torch.stack(path).numpy() for name, path in learned.items()}
            np.savez(temporary, **arrays)


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed dropout and whatever else draws from torch's own generator."""
    torch.manual_seed((seed * 1_000_003 + epoch) * 1009 + 500 + rank)


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Build the recipe's optimizer."""
    spec = recipe.optimizer
    parameters = [p for p in network.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": parameters, "weight_decay": spec.weight_decay}]
    if not spec.decay_all and spec.weight_decay:
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": spec.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov)
    return (torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW)(groups, lr=spec.lr)


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Learning rate at a time in epochs; a function of nothing else, so that a restart cannot lose it."""
    spec: Schedule = recipe.schedule
    top = recipe.optimizer.lr
    if epoch < spec.warmup:
        return spec.warmup_lr + (top - spec.warmup_lr) * epoch / spec.warmup
    if spec.name == "step":
        return top * spec.factor ** sum(int(epoch) >= m for m in spec.milestones)
    if spec.name == "cosine":
        share = (epoch - spec.warmup) / max(1e-12, recipe.epochs - spec.warmup)
        return spec.minimum + (top - spec.minimum) * (1 + math.cos(math.pi * min(1.0, share))) / 2
    return top
