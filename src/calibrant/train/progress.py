"""The progress of training."""

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import lightning.pytorch as lightning

from calibrant.extras import require
from calibrant.losses import AdaptiveLoss

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress, TaskID

#: Seconds between two lines when there is no terminal.
PAUSE: Final = 10.0
#: Width of a terminal below which bars are short.
NARROW: Final = 100


class Progress(lightning.Callback):
    """Loss, validation accuracy and ECE, and what the loss has learned, on standard error.

    On a terminal, bars for epochs and batches; elsewhere a line for the first and the last epoch, and one every ten seconds
    in between.
    """

    def __init__(self) -> None:
        self.bar: RichProgress | None = None
        self.epochs: TaskID | None = None
        self.steps: TaskID | None = None
        self.results = self.learned = ""
        self.lines = False
        self.said = self.started = 0.0
        self.first = 0

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start, in the first process."""
        del pl_module
        if not trainer.is_global_zero:
            return
        self.started, self.first = time.monotonic(), trainer.current_epoch
        module = require("rich.progress", "a progress bar")
        console = require("rich.console", "a progress bar").Console(stderr=True)
        if not console.is_terminal:
            self.lines = True
            return
        columns = (
            module.TextColumn("{task.description}"),
            module.BarColumn(bar_width=24 if console.width >= NARROW else 10),
            module.MofNCompleteColumn(),
            module.TimeRemainingColumn(compact=True),
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
            self.bar.reset(self.steps, total=int(trainer.num_training_batches), results=self.learned)

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Advance by one batch."""
        if self.bar is not None and self.steps is not None:
            self.bar.advance(self.steps)
            texts = (f"loss {float(arguments[2]['loss']):.4f}", self.learned)
            self.bar.update(self.steps, results=", ".join(filter(None, texts)))

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Show the validation results."""
        del trainer
        result, loss = getattr(pl_module, "result", None), getattr(pl_module, "loss", None)
        if result is None:
            return
        self.results = f"accuracy {100 * result.accuracy:.1f}%, ECE {100 * result.ece:.2f}%"
        self.learned = loss.summary() if isinstance(loss, AdaptiveLoss) else ""

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Advance by one epoch."""
        if self.bar is not None and self.epochs is not None:
            self.bar.advance(self.epochs)
            self.bar.update(self.epochs, results=self.results)
        done, total = trainer.current_epoch + 1, int(trainer.max_epochs or 0)
        now = time.monotonic()
        if self.lines and (done == total or not self.said or now - self.said >= PAUSE):
            self.said = now
            left = (now - self.started) / (done - self.first) * (total - done)
            mean: Any = pl_module.train_loss
            texts = (f"loss {mean():.4f}", self.results, self.learned, f"about {_duration(left)} left" if left else "")
            print(f"epoch {done} of {total}: {', '.join(filter(None, texts))}", file=sys.stderr, flush=True)  # noqa: T201

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Remove the bars, also after an error."""
        del trainer, pl_module, stage
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_exception(self, *arguments: Any) -> None:
        """Remove the bars before the error is shown."""
        self.teardown(arguments[0], arguments[1], "fit")


def _duration(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s"
