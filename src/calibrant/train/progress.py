"""The progress bar of training."""

from typing import TYPE_CHECKING, Any

import lightning.pytorch as lightning

from calibrant.extras import require
from calibrant.losses import AdaptiveLoss

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar(lightning.Callback):
    """Epochs and batches on standard error, with loss, validation accuracy and ECE, and what the loss has learned."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self.epochs: TaskID | None = None
        self.steps: TaskID | None = None
        self.results = ""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Show the bar, in the first process and on a terminal."""
        del pl_module
        module = require("rich.progress", "a progress bar")
        console = require("rich.console", "a progress bar").Console(stderr=True)
        if not trainer.is_global_zero or not console.is_terminal:
            return
        columns = (
            module.TextColumn("{task.description}"),
            module.BarColumn(bar_width=24),
            module.MofNCompleteColumn(),
            module.TimeRemainingColumn(),
            module.TextColumn("{task.fields[results]}"),
        )
        self.bar = module.Progress(*columns, console=console, transient=True, refresh_per_second=4)
        self.bar.start()
        self.epochs = self.bar.add_task("epochs", total=trainer.max_epochs, completed=trainer.current_epoch, results="")
        self.steps = self.bar.add_task("batches", total=int(trainer.num_training_batches), results="")

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Restart the count of batches."""
        del pl_module
        if self.bar is not None and self.steps is not None:
            self.bar.reset(self.steps, total=int(trainer.num_training_batches), results="")

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Advance by one batch."""
        if self.bar is not None and self.steps is not None:
            self.bar.advance(self.steps)
            self.bar.update(self.steps, results=f"loss {float(arguments[2]['loss']):.4f}")

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Show the validation results."""
        del trainer
        result, loss = getattr(pl_module, "result", None), getattr(pl_module, "loss", None)
        if self.bar is None or result is None:
            return
        self.results = f"accuracy {100 * result.accuracy:.1f} %, ECE {100 * result.ece:.2f} %"
        if isinstance(loss, AdaptiveLoss) and loss.summary():
            self.results += f", {loss.summary()}"

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Advance by one epoch."""
        del trainer, pl_module
        if self.bar is not None and self.epochs is not None:
            self.bar.advance(self.epochs)
            self.bar.update(self.epochs, results=self.results)

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Remove the bar, also after an error."""
        del trainer, pl_module, stage
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_exception(self, *arguments: Any) -> None:
        """Remove the bar before the error is shown."""
        self.teardown(arguments[0], arguments[1], "fit")
