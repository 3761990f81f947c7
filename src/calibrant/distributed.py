"""Sums over the processes of a ``torch.distributed`` job; without one, the identity."""

import torch
from torch import Tensor
from torch import distributed as dist


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Return the element-wise sum of ``tensor`` (same shape and type on every process); a collective call."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    summed = tensor.detach().to(_device(), copy=True)
    dist.all_reduce(summed)
    return summed.to(tensor.device)


def _device() -> torch.device:
    """The device whose tensors the job's backend can reduce: the CPU where it can, else the accelerator."""
    if any(name in str(dist.get_backend_config()) for name in ("gloo", "mpi")):
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    return accelerator if accelerator is not None else torch.device("cpu")
