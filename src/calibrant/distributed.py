"""Sums over the processes of a ``torch.distributed`` job; without one, the identity."""

import torch
from torch import Tensor, distributed as dist


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Return the element-wise sum of ``tensor`` (same shape and type on every process); a collective call.

    Args:
        tensor: This process's summand.
        device: This process's accelerator, if the job's backend cannot reduce on the CPU; the current one by default.
    """
    if world_size() == 1:
        return tensor
    summed = tensor.detach().to(_reducing_device(device), copy=True)
    dist.all_reduce(summed)
    return summed.to(tensor.device)


def _reducing_device(device: torch.device | None) -> torch.device:
    backends = str(dist.get_backend_config())
    if any(name in backends for name in ("gloo", "mpi", "cpu:")):
        return torch.device("cpu")
    if device is not None and device.type != "cpu":
        return device
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
