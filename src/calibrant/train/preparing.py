"""Data, network and loss of a recipe, tried out before anything is written or hours are spent on training."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from calibrant import losses, models
from calibrant.data import DATA, DataSet
from calibrant.errors import InputError, input_errors
from calibrant.losses import Loss
from calibrant.models import needs
from calibrant.recipes import GIVEN, Data, Recipe
from calibrant.train.batches import Batches, feed_of
from calibrant.train.options import check_trainer

#: A network is small if its forward pass over a batch takes fewer operations: threads would then wait for each other longer
#: than they work, and much longer beside another busy process.
SMALL: Final = 1e9


class Prepared(NamedTuple):
    """What a run is made of.

    Attributes:
        data: The data set.
        network: The network.
        loss: The loss.
        operations: Floating-point operations of the forward pass over one sample.
        memory: Rough number of bytes that training takes.
    """

    data: DataSet
    network: nn.Module
    loss: Loss
    operations: float
    memory: float


def check(recipe: Recipe, *, allow_code: bool = False, given: Mapping[str, Any] | None = None) -> None:
    """Refuse a recipe that cannot work, options of the trainer included."""
    recipe.check(allow_code=allow_code, given=tuple(given or ()))
    check_trainer(recipe.trainer, allow_code=allow_code)
    if recipe.select != "last" and recipe.trainer.get("limit_val_batches") == 0:
        raise InputError(f"select is {recipe.select}, but with trainer.limit_val_batches = 0 there is no validation")


def take_given(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a recipe, and the objects among them: samples, a network, a loss."""
    given = {
        name: value
        for name, value in fields.items()
        if (name == "data" and not isinstance(value, str) and not _is_fields(value))
        or (name in ("model", "loss") and isinstance(value, nn.Module))
    }
    named = {name: {"name": f"{GIVEN}{type(value).__name__}"} for name, value in given.items()}
    return {**fields, **named}, given


def _is_fields(value: Any) -> bool:
    """Whether something holds a recipe's fields, rather than samples."""
    return isinstance(value, Data) or (isinstance(value, Mapping) and not {"train", "test"} & set(map(str, value)))


def prepare(recipe: Recipe, *, allow_code: bool = False, given: Mapping[str, Any] | None = None) -> Prepared:
    """Data, network and loss of a recipe, with all labels checked and the network tried on two samples.

    Raises:
        InputError: If something is wrong with them.
    """
    own = dict(given or {})
    with input_errors(), input_errors("" if "data" in own else f"data {recipe.data.name}", unfit=recipe.data.name in DATA):
        data = recipe.load_data(own.get("data"), allow_code=allow_code)
        data.train.check_augmentation(recipe.augmentation, recipe.mixing)
        data.check()
    torch.manual_seed(recipe.seed)
    shipped = recipe.model.name in models.MODELS or recipe.model.name.startswith(models.PREFIXES)
    with input_errors(), input_errors("" if "model" in own else f"model {recipe.model.name}", unfit=shipped):
        with _within_memory():
            make = recipe.build_model
            network = own["model"] if "model" in own else make(data.num_classes, data.facts, allow_code=allow_code)
        tried = _try_out(recipe, data, network)
        if _channels_last(recipe, network, tried, ours=shipped and "model" not in own):
            network.to(memory_format=torch.channels_last)
            _try_out(recipe, data, network)
    if recipe.model.compile:
        network.compile()
    with input_errors(), input_errors(f"loss {recipe.loss.name}", unfit=recipe.loss.name in losses.METHODS):
        build = recipe.build_loss
        loss = own["loss"] if "loss" in own else build(data.num_classes, data.ignore_index, allow_code=allow_code)
        _try_loss(loss, tried.logits, tried.y)
    state = 16 * sum(p.numel() for p in network.parameters())  # weights, gradients, and two moments of the optimizer
    return Prepared(data, network, loss, tried.operations, state + tried.saved * recipe.batch_size)


class _Tried(NamedTuple):
    """What a network did with two samples.

    Attributes:
        x: Inputs.
        y: Labels.
        logits: Outputs.
        operations: Floating-point operations per sample.
        saved: Bytes per sample that it keeps for the backward pass.
    """

    x: Tensor
    y: Tensor
    logits: Tensor
    operations: float
    saved: float


def _try_out(recipe: Recipe, data: DataSet, network: nn.Module) -> _Tried:
    """Run the network on two samples and check its outputs; lazy layers are initialised here."""
    feed = replace(feed_of(recipe, data, needs(network)), workers=0)
    part = data.validation if len(data.validation) else data.train
    x, y, _ = next(iter(Batches(part, 2, feed)))
    device = next((p.device for p in network.parameters()), x.device)
    lazy = any(isinstance(p, nn.UninitializedParameter) for p in network.parameters())
    training = network.training
    held = (x, *(p for p in network.parameters() if not isinstance(p, nn.UninitializedParameter)))
    known, kept = {tensor.untyped_storage().data_ptr() for tensor in held}, dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network.train(mode=lazy)(x.to(device))
    network.train(training)
    wanted = (len(x), data.num_classes, *y.shape[1:])
    if not isinstance(logits, Tensor) or tuple(logits.shape) != wanted:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the network gives {got} for inputs {tuple(x.shape)}; expected logits {wanted}")
    return _Tried(x, y, logits.detach(), float(counter.get_total_flops()) / len(x), sum(kept.values()) / len(x))


def _channels_last(recipe: Recipe, network: nn.Module, tried: _Tried, *, ours: bool) -> bool:
    """Whether images are laid out with their channels last; if the recipe leaves it open, for classification on a CPU.

    Not for networks from elsewhere: ``view``, which many call, fails on this layout.
    """
    images = tried.x.dim() == 4 and all(p.dim() < 5 for p in network.parameters())
    if not images or recipe.model.channels_last is not None:
        return images and bool(recipe.model.channels_last)
    return ours and tried.y.dim() == 1 and not torch.cuda.is_available() and not torch.backends.mps.is_available()


def _try_loss(loss: Any, logits: Tensor, y: Tensor) -> None:
    """Refuse what is not a loss."""
    if not isinstance(loss, nn.Module) or type(loss).forward is nn.Module.forward:
        raise InputError(
            f"{type(loss).__name__} is not a loss: expected a torch.nn.Module whose forward takes logits and labels"
        )
    with torch.no_grad():
        value = loss(logits, y.to(logits.device))
    if not isinstance(value, Tensor) or value.dim():
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"the loss of a batch must be a single number, a tensor without dimensions, got {got}")


def is_small(recipe: Recipe, operations: float) -> bool:
    """Whether the network trains fastest with a single thread."""
    return operations * recipe.batch_size < SMALL


@contextmanager
def threads_of(recipe: Recipe, operations: float, threads: int | None) -> Iterator[None]:
    """Compute with this many threads; if not given, here or by OMP_NUM_THREADS, small networks use one."""
    before = torch.get_num_threads()
    if threads is None:
        chosen = "OMP_NUM_THREADS" in os.environ or not is_small(recipe, operations)
        threads = before if chosen else 1
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _within_memory() -> Iterator[None]:
    """Refuse what would not fit into the machine's memory, before it is allocated."""
    with _Limit(machine_memory()):
        yield


def machine_memory() -> float:
    """Bytes of memory of this machine; infinity where it is not known."""
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else math.inf


class _Limit(TorchDispatchMode):
    """Counts the bytes of new tensors."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.most, self.total = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if args and isinstance(args[0], list | tuple) and func._schema.arguments[0].name == "size":  # noqa: SLF001
            self.total += 4 * math.prod(args[0])
            if self.total > self.most:
                raise InputError(
                    f"it would take more than {self.total / 2**30:,.0f} GB, and this machine has {self.most / 2**30:,.0f}"
                )
        return func(*args, **(kwargs or {}))
