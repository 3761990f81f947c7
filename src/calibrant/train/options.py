"""Options of Lightning's trainer that a recipe may set."""

import inspect
from collections.abc import Mapping
from typing import Any, Final

from lightning.pytorch import Trainer

from calibrant.checks import in_range, whole
from calibrant.errors import InputError, did_you_mean, input_errors
from calibrant.train.trackers import check_loggers

#: Options that calibrant sets itself, and how.
OURS: Final = {
    **dict.fromkeys(("max_epochs", "min_epochs", "max_steps", "min_steps"), "`epochs`"),
    **dict.fromkeys(("check_val_every_n_epoch", "val_check_interval"), "`validate_every`"),
    "fast_dev_run": "`dry_run=True`",
    "enable_progress_bar": "`quiet=True`",
    **dict.fromkeys(("callbacks", "plugins", "model_registry", "default_root_dir", "enable_checkpointing"), ""),
    **dict.fromkeys(("enable_model_summary", "num_sanity_val_steps", "use_distributed_sampler"), ""),
}


def check_trainer(options: Mapping[str, Any], *, allow_code: bool = False) -> None:
    """Refuse options that ``lightning.Trainer`` does not have, or that a recipe sets itself."""
    accepted = [name for name in inspect.signature(Trainer.__init__).parameters if name not in {"self", *OURS}]
    for name, value in options.items():
        if name in OURS:
            raise InputError(f"trainer.{name} is set by calibrant itself" + (f": {OURS[name]}" if OURS[name] else ""))
        if name not in accepted:
            hint = did_you_mean(name, accepted).removeprefix("; ") or f"allowed are {', '.join(accepted)}"
            raise InputError(f"trainer.{name} is not known; {hint}")
        if name == "max_time" and isinstance(value, int | float):  # 1:00:00:00 is a number to YAML
            raise InputError('trainer.max_time must be "DD:HH:MM:SS" in quotes, or a mapping such as {hours: 3}')
        if name != "logger":
            _refuse_classes(f"trainer.{name}", value)
    check_loggers(options.get("logger"), allow_code=allow_code)
    with input_errors():  # which Lightning lets pass
        whole("trainer.accumulate_grad_batches", options.get("accumulate_grad_batches") or 1, 1)
        in_range("trainer.gradient_clip_val", options.get("gradient_clip_val") or 1, 0)
    for name in ("accumulate_grad_batches", "limit_train_batches"):
        if options.get(name) in (0, 0.0) and options.get(name) is not None:
            raise InputError(f"trainer.{name} must be more than 0, or nothing is trained")


def _refuse_classes(path: str, value: Any) -> None:
    """Refuse anything that would have to be imported."""
    if isinstance(value, Mapping) and "class_path" in value:
        raise InputError(f"{path} takes no class_path; only trainer.logger does")
    if not isinstance(value, str | int | float | bool | list | Mapping | None):
        raise InputError(f"{path} must be a string or a number, as in a file, got {type(value).__name__}")
