"""Hugging Face: calibrant's losses and metrics in the transformers ``Trainer``."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.extras import require
from calibrant.integrations.validation import Validation, learned_scalars
from calibrant.losses import METHODS, AdaptiveLoss

transformers: Any = require("transformers", "calibrant.integrations.huggingface")

#: The key in a checkpoint's trainer_state.json under which the learned state of the loss is saved.
KEY = "calibrant"
#: Label that transformers ignores.
IGNORED = -100


def loss_function(loss: nn.Module) -> Callable[..., Tensor]:
    """A loss as the ``compute_loss_func`` of a Trainer, for sequence, token or image classification.

    The Trainer does not divide the loss of a custom function by the number of accumulation steps; instead it passes the
    number of labels in all of them, ``num_items_in_batch``. The mean over the n labels of each step is multiplied by
    n / ``num_items_in_batch``: over all steps this adds up to the overall mean, and the gradient is that of one large batch.

    Args:
        loss: Any loss of calibrant or PyTorch, with ``reduction="mean"`` and ``ignore_index=-100``.

    Example:
        >>> import torch
        >>> from calibrant.integrations.huggingface import loss_function
        >>> from calibrant.losses import MbLS
        >>> compute = loss_function(MbLS())
        >>> outputs, labels = {"logits": torch.zeros(1, 4, 2)}, torch.tensor([[-100, 0, 1, -100]])  # of tokens
        >>> round(float(compute(outputs, labels)), 4), round(float(compute(outputs, labels, num_items_in_batch=4)), 4)
        (0.6931, 0.3466)
    """
    if not isinstance(loss, nn.Module):
        raise TypeError(f"loss must be a loss, such as losses.MbLS(margin=6), got {type(loss).__name__}")
    for name, expected in (("reduction", "mean"), ("ignore_index", IGNORED)):
        if getattr(loss, name, expected) != expected:
            raise ValueError(f"with the Trainer, {name} must be {expected!r}, got {getattr(loss, name)!r}")

    def compute(outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError(
                "there are no labels: name the column of the data set labels, or set label_names in the arguments"
            )
        logits, target = flat(outputs["logits"] if isinstance(outputs, Mapping) else outputs[0], labels)
        mean: Tensor = loss.to(logits.device)(logits, target)
        if num_items_in_batch is None:
            return mean
        total = torch.as_tensor(num_items_in_batch, device=logits.device).flatten()[0]
        return mean * (target != IGNORED).sum() / total

    return compute


def flat(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits with classes in dimension 1: tokens ``(N, T, K)`` become samples, everything else stays."""
    if logits.dim() != 3:
        return logits, labels
    if labels.shape != logits.shape[:2]:
        raise ValueError(
            f"labels must have shape {tuple(logits.shape[:2])}, one for each token of logits {tuple(logits.shape)}, got "
            f"{tuple(labels.shape)}"
        )
    return logits.flatten(0, 1), labels.flatten()


class AdaptCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Lets an adaptive loss observe every evaluation during training and adapt once at the end of each.

    Use it together with ``compute_loss_func=loss_function(loss)``, through which evaluation batches reach the loss.
    It never learns from ``trainer.evaluate`` or ``trainer.predict`` outside training. Its learned state is saved in the
    ``trainer_state.json`` of checkpoints and restored by ``trainer.train(resume_from_checkpoint=...)``.

    Args:
        loss: The loss.
        metric_key_prefix: With several evaluation sets, ``"eval_NAME"`` chooses the one to learn from.

    Example:
        >>> from calibrant.integrations.huggingface import AdaptCallback
        >>> from calibrant.losses import CALSALM
        >>> callback = AdaptCallback(CALSALM(num_classes=3))
    """

    def __init__(self, loss: AdaptiveLoss, *, metric_key_prefix: str = "eval") -> None:
        if not isinstance(loss, AdaptiveLoss):
            adaptive = ", ".join(method.name for method in METHODS.values() if method.adaptive)
            raise TypeError(
                f"AdaptCallback is for losses that learn from validation data ({adaptive}), which {type(loss).__name__} is "
                "not: leave the callback out"
            )
        self.loss, self.metric_key_prefix = loss, metric_key_prefix
        self._hook: Any = None  # while training

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Restore the loss from a checkpoint, and start observing."""
        del args, control, others
        self._stop()
        saved = state.stateful_callbacks.get(KEY)
        if saved is not None:
            buffers = self.loss.state_dict()
            given = {
                name: torch.tensor(value, dtype=buffers[name].dtype) for name, value in saved.items() if name in buffers
            }
            self.loss.load_state_dict(given)
        self._hook = self.loss.register_forward_hook(_observe)

    def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: Mapping[str, Any], **others: Any) -> None:
        """Adapt, and record the learned state for the next checkpoint."""
        del args, control, others
        if self._hook is None:
            return
        if f"{self.metric_key_prefix}_loss" not in metrics:
            self.loss._forget()  # noqa: SLF001 - another evaluation set
            return
        try:
            self.loss.adapt()
        except RuntimeError as error:
            raise RuntimeError(
                "AdaptCallback saw no labelled evaluation batch: give the Trainer compute_loss_func=loss_function(loss), "
                "with the same loss, and an eval_dataset with labels"
            ) from error
        state.stateful_callbacks[KEY] = {name: value.tolist() for name, value in self.loss.state_dict().items()}

    def on_predict(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Forget predictions made during training."""
        del args, state, control, others
        if self._hook is not None:
            self.loss._forget()  # noqa: SLF001

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop observing."""
        del args, state, control, others
        self._stop()

    def _stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None


def _observe(loss: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    """Called after each call of the loss; evaluation is recognised by the absence of gradients."""
    del output
    if not torch.is_grad_enabled() and isinstance(loss, AdaptiveLoss):
        loss.observe(*inputs)


def compute_metrics(
    loss: nn.Module | None = None, *, metrics: Collection[str] | None = None, num_bins: int = 15
) -> Callable[..., dict[str, float]]:
    """The ``compute_metrics`` of a Trainer: accuracy, calibration errors, proper scores.

    With ``batch_eval_metrics=True`` in its arguments, the logits of the whole evaluation set are never held in memory.

    Args:
        loss: The loss; if it is adaptive, the weights of the past epoch are reported as well.
        metrics: Keys of the metrics, such as ``["ece", "nll"]``; by default, those of an audit.
        num_bins: Number of bins for the binned errors.

    Example:
        >>> import numpy
        >>> from transformers import EvalPrediction
        >>> from calibrant.integrations.huggingface import compute_metrics
        >>> found = compute_metrics(metrics=["accuracy", "ece"])(
        ...     EvalPrediction(predictions=numpy.array([[4.0, 0.0]] * 8), label_ids=numpy.array([0] * 6 + [1] * 2))
        ... )
        >>> found["accuracy"], round(found["ece"], 3)
        (0.75, 0.232)
    """
    validation = Validation(loss, metrics=metrics, num_bins=num_bins)

    def compute(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        predictions, labels = prediction.predictions, prediction.label_ids
        predictions = predictions[0] if isinstance(predictions, (tuple, list)) else predictions
        validation.update(*flat(torch.as_tensor(predictions), torch.as_tensor(labels)), observe=False)
        if not compute_result:
            return {}
        scalars = validation.finish(adapt=False, sync=False).scalars  # the Trainer gathers what all processes predict
        return scalars | (learned_scalars(loss) if isinstance(loss, AdaptiveLoss) else {})

    return compute
