"""timm: a training task that measures calibration, and adapts and saves an adaptive loss."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.extras import require
from calibrant.integrations.validation import Found, Validation

timm_task: Any = require("timm.task", "calibrant.integrations.timm")


class CalibratedTask(timm_task.ClassificationTask):  # type: ignore[misc]
    """A ``timm.task.ClassificationTask`` that supports calibrant's adaptive losses.

    Trains like its parent, including on the soft targets of timm's ``Mixup``; :meth:`validate` measures calibration and lets
    an adaptive loss observe the validation set and adapt; checkpoints of the task include the learned state of the loss.

    Args:
        model: The network.
        criterion: The loss.
        **options: Those of ``ClassificationTask``.

    Example:
        >>> import timm, torch
        >>> from calibrant.integrations.timm import CalibratedTask
        >>> from calibrant.losses import MbLS
        >>> task = CalibratedTask(timm.create_model("test_resnet", num_classes=3), MbLS(margin=6), verbose=False)
        >>> batch = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 0])
        >>> sorted(task(*batch)), task.validate([batch]).panel.samples
        (['loss', 'output'], 4)
    """

    def __init__(self, model: nn.Module, criterion: nn.Module, **options: Any) -> None:
        super().__init__(model, criterion, **options)
        self.validation = Validation(criterion)

    def validate(self, batches: Iterable[tuple[Tensor, Tensor]], *, adapt: bool = True, ema: bool = False) -> Found:
        """Measure the network on images and labels, and let an adaptive loss learn from them; call it once per epoch.

        Args:
            batches: The validation set, such as a loader.
            adapt: Whether the loss learns; False for a test set.
            ema: Measure the EMA weights, if there are any. The loss should learn from the trained weights, not from these.

        Returns:
            ``panel``, the :class:`calibrant.metrics.PanelResult`, and ``scalars``, plain floats for loggers.
        """
        model = self.get_eval_model(ema=ema)
        if model is None:
            raise ValueError("there are no EMA weights: call setup_ema() first, or leave out ema=True")
        device, training = next(model.parameters()).device, model.training
        self.validation.forget()
        model.eval()
        try:
            for images, labels in batches:
                with torch.no_grad():
                    logits = model(images.to(device))
                self.validation.update(logits, labels.to(device), observe=adapt)
        finally:
            model.train(training)
        return self.validation.finish(adapt=adapt)

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:
        """What the loss has learned."""
        del module
        return {} if ema else {"criterion": self.criterion.state_dict()}

    def load_task_state(
        self, state: dict[str, Any] | None, strict: bool = True, module: nn.Module | None = None, ema: bool = False
    ) -> None:
        """Restore it."""
        del module
        if state and not ema:
            self.criterion.load_state_dict(state["criterion"], strict=strict)
