"""PyTorch Lightning: a callback that measures calibration and lets adaptive losses adapt in your own module."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from calibrant.extras import require
from calibrant.integrations.validation import Validation
from calibrant.metrics import PanelResult

if TYPE_CHECKING:
    import lightning.pytorch as pl
else:
    pl = require("lightning.pytorch", "calibrant.integrations.lightning")

#: What the ``validation_step`` of a module has to return.
EXPECTED = (
    'return {"logits": logits, "target": target} from it, or pass outputs=, a function of what it returns and the batch'
)


class CalibrationCallback(pl.Callback):
    """Measures calibration in every validation run, and lets an adaptive loss observe it and adapt once.

    The module's ``validation_step`` returns ``{"logits": ..., "target": ...}``. Metrics are logged as ``val_ece`` etc., the
    learned weights as ``val_multipliers_mean`` or ``val_gammas_mean``; any of them can be monitored, as in
    ``ModelCheckpoint(monitor="val_ece")``. Loggers that take figures, such as TensorBoard's, get a reliability diagram.

    Nothing is learned or logged in the sanity check, and nothing is learned in ``trainer.validate``. With several
    processes, metrics and statistics are summed over all of them. A loss that is not part of the module is moved to
    its device, and saved with the callback's state.

    Args:
        loss: The loss that the module trains with; None to measure only.
        metrics: Keys of the metrics to log, such as ``["ece", "nll"]``; by default, those of an audit.
        num_bins: Number of bins for the binned errors.
        prefix: Prefix of all logged names.
        dataloader: Index of the validation loader to use.
        figure: Whether to log a reliability diagram.
        outputs: If ``validation_step`` returns something else: a function of it and the batch that gives logits and labels.

    Example:
        >>> from calibrant.integrations.lightning import CalibrationCallback
        >>> from calibrant.losses import AdaFocal
        >>> callback = CalibrationCallback(AdaFocal(), metrics=["accuracy", "ece", "nll"])
        >>> callback.result is None  # before the first validation
        True
    """

    def __init__(
        self,
        loss: nn.Module | None = None,
        *,
        metrics: Collection[str] | None = None,
        num_bins: int = 15,
        prefix: str = "val_",
        dataloader: int = 0,
        figure: bool = True,
        outputs: Callable[[Any, Any], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self._validation = Validation(loss, metrics=metrics, num_bins=num_bins)
        self.loss, self.prefix, self.dataloader, self.figure, self.outputs = loss, prefix, dataloader, figure, outputs
        self._inside = False  # whether the loss is part of the module
        #: What the last validation measured.
        self.result: PanelResult | None = None

    def setup(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule", stage: str) -> None:
        """Find out whether the module saves the loss."""
        del stage
        if trainer.world_size > 1 and pl_module.allow_zero_length_dataloader_with_multiple_devices:
            raise ValueError(
                "CalibrationCallback needs a validation batch in every process, or those without would leave the others "
                "waiting: do not set allow_zero_length_dataloader_with_multiple_devices"
            )
        self._inside = any(part is self.loss for part in pl_module.modules())

    def on_fit_start(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule") -> None:
        """Move a loss that is not part of the module to its device."""
        del trainer
        if self.loss is not None and not self._inside:
            self.loss.to(pl_module.device)

    def on_validation_epoch_start(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule") -> None:
        """Start over."""
        del trainer, pl_module
        self._validation.forget()

    def on_validation_batch_end(
        self,
        trainer: "pl.Trainer",
        pl_module: "pl.LightningModule",
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Measure a batch, and let the loss observe it."""
        del pl_module, batch_idx
        if dataloader_idx == self.dataloader:
            self._validation.update(*self._read(outputs, batch), observe=_learning(trainer))

    def on_validation_epoch_end(self, trainer: "pl.Trainer", pl_module: "pl.LightningModule") -> None:
        """Let the loss adapt, and log."""
        if trainer.sanity_checking:
            self._validation.forget()
            return
        self.result, scalars = self._validation.finish(adapt=_learning(trainer))
        # The values are the same on all processes; the mean over them, which Lightning recommends, changes nothing.
        pl_module.log_dict({self.prefix + name: value for name, value in scalars.items()}, sync_dist=True)
        if self.figure and trainer.is_global_zero:
            self._log_figure(trainer, self.result)

    def state_dict(self) -> dict[str, Any]:
        """The state of a loss that is not part of the module."""
        return {} if self.loss is None or self._inside else {"loss": self.loss.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        if self.loss is not None and "loss" in state_dict:
            self.loss.load_state_dict(state_dict["loss"])

    def _read(self, found: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Logits and labels of a validation batch."""
        if self.outputs is not None:
            return self.outputs(found, batch)
        if isinstance(found, Mapping) and {"logits", "target"} <= set(found):
            return found["logits"], found["target"]
        came = f"a dict with {', '.join(map(str, found))}" if isinstance(found, Mapping) else type(found).__name__
        raise TypeError(f"CalibrationCallback needs logits and labels, but validation_step returned {came}; {EXPECTED}")

    def _log_figure(self, trainer: "pl.Trainer", result: PanelResult) -> None:
        """Send a reliability diagram to loggers with TensorBoard's ``add_figure``."""
        experiments = [getattr(logger, "experiment", None) for logger in trainer.loggers]
        takers: list[Any] = [experiment for experiment in experiments if hasattr(experiment, "add_figure")]
        if not takers:
            return
        from calibrant.plots import ReliabilityDiagram  # noqa: PLC0415 - matplotlib is slow to import

        diagram = ReliabilityDiagram.from_panel(result, f"epoch {trainer.current_epoch + 1}")
        for taker in takers:
            figure = diagram.plot().get_figure(root=True)
            taker.add_figure(f"{self.prefix}reliability", figure, trainer.global_step)  # closes the figure


def _learning(trainer: "pl.Trainer") -> bool:
    """Whether this validation is part of training."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking
