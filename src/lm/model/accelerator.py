"""What a step does differently on a GPU (cuda).

lm.model.device describes the machine.
"""

import torch
from torch import Tensor


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a CPU tensor on the device; on CUDA it is made while Python continues."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)  # Python would wait if the memory were not pinned
    return tensor.to(device)
