"""The Lightning module, and the callback that keeps history and checkpoints."""

import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from calibrant.data import DataSet
from calibrant.integrations.validation import Validation, learned_scalars
from calibrant.losses import AdaptiveLoss, Loss
from calibrant.losses.base import predictive
from calibrant.metrics import BinRecorder, Panel, PanelResult
from calibrant.metrics.table import MEASURES, ranked
from calibrant.models import needs
from calibrant.recipes import Recipe, Schedule
from calibrant.runs import RunFolder
from calibrant.train.batches import Batch, Batches, feed_of
from calibrant.train.mixing import Mixer

#: What marks a checkpoint as ours.
FORMAT = "calibrant run, version 1"


class DivergedError(RuntimeError):
    """The loss is no longer a finite number."""


class Module(lightning.LightningModule):
    """A network and its loss, trained according to a recipe.

    Args:
        recipe: The recipe.
        network: The network.
        loss: The loss, whose learned state is part of the checkpoint.
        data: The data set.
    """

    def __init__(self, recipe: Recipe, network: nn.Module, loss: Loss, data: DataSet) -> None:
        super().__init__()
        self.recipe, self.network, self.loss, self.data = recipe, network, loss, data
        if isinstance(loss, AdaptiveLoss):
            loss.scheduled()
        self._validation = Validation(loss, num_bins=recipe.num_bins, ignore_index=data.ignore_index)
        self.result: PanelResult | None = None
        self.test_result: PanelResult | None = None
        self.bins = BinRecorder(num_bins=recipe.num_bins, ignore_index=data.ignore_index)
        self.mixer = Mixer.of(recipe, data.num_classes)
        self.batches: dict[str, Batches] = {}
        self._losses: list[Tensor] = []
        self._sums = torch.zeros(2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.network(x)
        return logits

    # Data

    def _batches(self, part: str, *, train: bool) -> Batches:
        recipe = self.recipe
        self.batches[part] = Batches(
            self.data.part(part),
            recipe.batch_size if train else recipe.eval_batch_size,
            feed_of(recipe, self.data, needs(self.network), train=train),
            seed=recipe.seed,
            drop_last=train and recipe.drop_last,
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
        """Derive everything random from seed and epoch, so that a restart changes nothing."""
        seed_epoch(self.recipe.seed, self.current_epoch, self.global_rank)
        self.batches["train"].epoch = self.current_epoch
        self._losses, self._started = [], time.perf_counter()
        self._validations = validations(int(self.trainer.num_training_batches), self.recipe.validate_every)
        self.bins.forget()  # samples from epochs without validation

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set the learning rate of this step, and whether validation follows."""
        del batch
        rate = learning_rate(self.recipe, self.current_epoch + batch_idx / max(1, int(self.trainer.num_training_batches)))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate
        # Lightning validates after every n-th batch, but not at the end of an epoch whose length is not a multiple of n.
        self.trainer.val_check_batch = batch_idx + 1 if batch_idx + 1 in self._validations else math.inf

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of a batch, such that the mean over processes is that of the whole batch."""
        x, y, whole = batch
        loss = self._mixed_loss(x, y, batch_idx) if self.mixer is not None else self._plain_loss(self.network(x), y)
        self._losses.append(loss.detach())
        if (loss.is_cpu or batch_idx % 50 == 0) and not bool(loss.isfinite()):
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            raise DivergedError(
                f"the loss became {float(loss.detach())} in epoch {self.current_epoch}, batch {batch_idx}; lower "
                f"optimizer.lr (now {rate:g}), set trainer.gradient_clip_val, or check the inputs"
            )
        share = len(y) * self.trainer.world_size / whole
        return loss if share == 1 else share * loss

    def _plain_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Loss of a batch, whose confidences are recorded."""
        self.bins.train(predictive(self.loss, logits.detach()), y)
        loss: Tensor = self.loss(logits, y)
        return loss

    def _mixed_loss(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Loss of a mixed batch, for regmixup beside that of the batch itself; confidences in mixtures are not recorded."""
        assert self.mixer is not None  # noqa: S101
        mixed, shares = self.mixer(x, y, self.current_epoch, step, self.global_rank)
        if self.recipe.mixing != "regmixup":
            loss: Tensor = self.loss(self.network(mixed), shares)
            return loss
        logits, logits_of_mixed = self.network(torch.cat([x, mixed])).split(len(x))
        both: Tensor = self._plain_loss(logits, y) + self.loss(logits_of_mixed, shares)
        return both

    # Validation

    def on_validation_epoch_start(self) -> None:
        """Start over."""
        self._validation.forget()
        self._sums = torch.zeros(2, dtype=torch.float64)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Measure, and let an adaptive loss observe."""
        del batch_idx
        x, y, _ = batch
        outputs = self.network(x).float()
        logits = predictive(self.loss, outputs)
        if not bool(logits.isfinite().all()):
            raise DivergedError(
                f"the network gives logits that are not finite after epoch {self.current_epoch}; lower optimizer.lr, set "
                "trainer.gradient_clip_val, or check the inputs"
            )
        self._validation.update(outputs, y)
        self.bins.validation(logits, y)
        self._sums += torch.tensor([float(self.loss(outputs, y)) * len(y), len(y)], dtype=torch.float64)

    def on_validation_epoch_end(self) -> None:
        """Compute the results of all processes, and adapt an adaptive loss."""
        self.test_result = self._measure_test() if self.recipe.curves == "test" else None
        self.result = self._validation.finish().panel

    def _measure_test(self) -> PanelResult:
        """Measure the test set, for curves only: neither the loss nor checkpoint selection sees it."""
        panel = Panel(self.data.num_classes, num_bins=self.recipe.num_bins, ignore_index=self.data.ignore_index)
        for x, y, _ in self._batches("test", train=False):
            with self.trainer.precision_plugin.val_step_context():
                outputs = self.network(x.to(self.device)).float()
            panel.update(predictive(self.loss, outputs), y.to(self.device))
        result: PanelResult = panel.compute(sync=True)
        return result

    @property
    def whole_epoch(self) -> bool:
        """Whether all batches of the epoch were trained on; not if time ran out."""
        return len(self._losses) >= int(self.trainer.num_training_batches)

    @property
    def epochs_trained(self) -> float:
        """Epochs trained so far; a whole number at the end of one."""
        if self.whole_epoch:
            return self.current_epoch + 1
        return round(self.current_epoch + len(self._losses) / int(self.trainer.num_training_batches), 6)

    def train_loss(self) -> float:
        """Mean loss of the epoch's batches so far."""
        return float(torch.stack(self._losses).double().mean()) if self._losses else math.nan

    def validation_loss(self) -> float:
        """Mean loss of the validation samples of this process, with the weights it had while training."""
        return float(self._sums[0] / self._sums[1].clamp(min=1))

    def seconds(self) -> float:
        """Time since the epoch began."""
        return time.perf_counter() - self._started


class Writer(TorchCheckpointIO):
    """Writes checkpoints directly to their folder; Lightning's own writer goes through the temporary directory."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write it, and wait until it is on disk."""
        del storage_options
        with Path(path).open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())


class Keeper(lightning.Callback):
    """Keeps what is measured and learned at each validation, and writes it with a checkpoint at the end of each epoch.

    The order is: history in memory, checkpoint ``best.ckpt`` if it is the best, ``last.ckpt`` (the one before stays as
    ``previous.ckpt``), then the files made from it. Whenever the process is killed, the newest complete checkpoint holds
    everything, and anything newer is made again.

    Args:
        folder: The run folder.
        select: ``"last"``, or the measure by which the best checkpoint is chosen.
        watch: Called with the last row of the history after each epoch.
    """

    def __init__(self, folder: RunFolder, select: str, watch: Callable[[Mapping[str, float]], None] | None = None) -> None:
        self.folder, self.select, self.watch = folder, select, watch
        self.rows: list[dict[str, float]] = []
        self.learned: dict[str, list[Tensor]] = {}
        self.bins: dict[str, list[Tensor]] = {}
        self.best = math.inf
        self.begun = False

    def state_dict(self) -> dict[str, Any]:
        """What goes into the checkpoint."""
        return {
            "rows": self.rows,
            "learned": {name: torch.stack(path) for name, path in self.learned.items()},
            "bins": {name: torch.stack(path) for name, path in self.bins.items()},
            "best": self.best,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.rows, self.best = state_dict["rows"], state_dict["best"]
        self.learned = {name: list(path) for name, path in state_dict["learned"].items()}
        self.bins = {name: list(path) for name, path in state_dict.get("bins", {}).items()}  # older ones have none

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Note that errors from now on are not caused by a checkpoint."""
        del trainer, pl_module
        self.begun = True

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Make trainer.max_time apply to each command."""
        del trainer, pl_module
        for name in [name for name in checkpoint["callbacks"] if name.startswith("Timer")]:
            del checkpoint["callbacks"][name]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Mark it as ours."""
        del trainer
        checkpoint["calibrant"] = {"format": FORMAT, "recipe": pl_module.recipe.to_dict()}

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Record what was measured, and what the loss learned."""
        assert isinstance(pl_module, Module)  # noqa: S101
        result = pl_module.result
        if result is None:
            return
        row = self._new_row(trainer, pl_module)
        row["validation_loss"] = pl_module.validation_loss()
        row |= {r.key: result[r.key] for r in ranked(2, dense=pl_module.data.train.dense) if result.has(r)}
        if pl_module.test_result is not None:
            test = pl_module.test_result
            row |= {f"test_{r.key}": test[r.key] for r in ranked(2, dense=pl_module.data.train.dense) if test.has(r)}
        for name, value in {"epochs": _when(row), **pl_module.bins.take()}.items():
            self.bins.setdefault(name, []).append(value)
        if isinstance(pl_module.loss, AdaptiveLoss):
            row |= self._keep_learned(pl_module.loss, _when(row))

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the epoch."""
        assert isinstance(pl_module, Module)  # noqa: S101
        if not pl_module.whole_epoch:
            return
        if not self.rows or self.rows[-1]["epoch"] != pl_module.epochs_trained:
            self._new_row(trainer, pl_module)  # of an epoch without validation
        row, result, better = self.rows[-1], pl_module.result, False
        if result is not None and self.select != "last":
            value = (-1 if MEASURES[self.select].higher else 1) * result[self.select]
            better = value < self.best or not self.folder.checkpoint("best").exists()
            self.best = min(self.best, value)
        pl_module.result = None
        row["seconds"] = pl_module.seconds()
        self._save(trainer, better=better)
        if trainer.is_global_zero:
            self.write()
        if self.watch is not None:
            self.watch(row)

    @property
    def epochs(self) -> int:
        """Whole epochs recorded."""
        return sum(float(row["epoch"]).is_integer() for row in self.rows)

    def _new_row(self, trainer: lightning.Trainer, module: Module) -> dict[str, float]:
        """Start a row of the history at the current step."""
        row = {"epoch": module.epochs_trained, "train_loss": module.train_loss()}
        row |= {"lr": trainer.optimizers[0].param_groups[0]["lr"], "seconds": module.seconds()}
        self.rows.append(row)
        return row

    def write(self) -> None:
        """Write the files made from the checkpoint's content."""
        learned, bins = ({name: torch.stack(p).numpy() for name, p in own.items()} for own in (self.learned, self.bins))
        self.folder.write_history(self.rows, learned, bins)

    def _keep_learned(self, loss: AdaptiveLoss, when: Tensor) -> dict[str, float]:
        """Record the learned state of the loss, and return the values to log."""
        buffers = {name: loss.get_buffer(name).detach().cpu().clone() for name in loss.learned}
        for name, value in {"epoch": when, **buffers}.items():
            self.learned.setdefault(name, []).append(value)
        return learned_scalars(loss)

    def _save(self, trainer: lightning.Trainer, *, better: bool) -> None:
        new, last = self.folder.checkpoint("new"), self.folder.checkpoint("last")
        trainer.save_checkpoint(new, weights_only=False)  # all of it; all processes take part
        if not trainer.is_global_zero:
            return
        if better:
            temporary = self.folder.checkpoint("new-best")
            temporary.unlink(missing_ok=True)
            try:
                os.link(new, temporary)
            except OSError:  # a file system without links
                shutil.copyfile(new, temporary)
            temporary.replace(self.folder.checkpoint("best"))
        if last.exists():
            last.replace(self.folder.checkpoint("previous"))
        new.replace(last)


def _when(row: dict[str, float]) -> Tensor:
    """Epochs trained when a row of the history was measured."""
    return torch.tensor(row["epoch"], dtype=torch.float64)


def seed_epoch(seed: int, epoch: int, rank: int = 0) -> None:
    """Seed dropout and everything else that uses torch's global generator."""
    torch.manual_seed((seed * 1_000_003 + epoch) * 1009 + 500 + rank)


def validations(batches: int, every: float) -> Collection[int]:
    """Batches of an epoch after which to validate: each time the given fraction has passed, and at its end."""
    if every >= 1:
        return {batches}
    step = max(1.0, every * batches)
    return {min(batches, math.ceil(k * step - 1e-9)) for k in range(1, math.ceil(batches / step) + 1)}


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
    fused = _can_be_fused(parameters) or None
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused)
    kind = torch.optim.Adam if spec.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=spec.lr, betas=(spec.betas[0], spec.betas[1]), eps=spec.eps, fused=fused)


def _can_be_fused(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether the optimizer may update all of a parameter in one pass; on other devices, PyTorch itself chooses how."""
    return all(p.is_cpu and p.is_floating_point() and not p.is_sparse for p in parameters)


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Learning rate at a time in epochs; it depends on nothing else, so that a restart cannot lose it."""
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
