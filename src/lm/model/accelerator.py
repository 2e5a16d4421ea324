"""What a step does differently on a GPU (cuda).

lm.model.device describes the machine.
"""

import torch
from torch import Tensor


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on the device; on CUDA it is made while Python continues."""
    if is_gpu(device):
        return tensor.pin_memory().to(device, non_blocking=True)  # Python would wait if the memory were not pinned
    return tensor.to(device)


def is_gpu(device: torch.device) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return device.type == "cuda"


def free_bytes(gpu: torch.device) -> int:
    """Return how many bytes of a GPU's memory tensors may still take: what nobody has, and what torch keeps unused."""
    unallocated_bytes, _ = torch.cuda.mem_get_info(gpu)
    cached_bytes = torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    return unallocated_bytes + cached_bytes


def shared_bytes(gpu: torch.device) -> int:
    """Return the bytes of the memory that the threads of a block may share on a GPU."""
    return torch.cuda.get_device_properties(gpu).shared_memory_per_block_optin
