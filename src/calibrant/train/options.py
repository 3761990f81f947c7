"""Options of Lightning's trainer that a recipe may set."""

import inspect
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer

from calibrant.errors import InputError, did_you_mean

#: Options that the recipe sets itself.
OURS = {
    "max_epochs",
    "callbacks",
    "enable_checkpointing",
    "use_distributed_sampler",
    "check_val_every_n_epoch",
    "default_root_dir",
}


def check_trainer(options: Mapping[str, Any]) -> None:
    """Refuse options that ``lightning.Trainer`` does not have, or that a recipe sets itself."""
    accepted = [name for name in inspect.signature(Trainer.__init__).parameters if name not in {"self", *OURS}]
    for name in options:
        if name in OURS:
            raise InputError(f"trainer.{name} is set by the recipe itself (epochs, validate_every, ...)")
        if name not in accepted:
            hint = did_you_mean(name, accepted).removeprefix("; ") or f"allowed are {', '.join(accepted)}"
            raise InputError(f"trainer.{name} is not known; {hint}")
