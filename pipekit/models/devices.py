"""Where a network's weights are made."""

import torch
from torch.types import Device


def on(device: Device) -> torch.device:
    """Return a context in which new layers are on ``device``; None is PyTorch's default."""
    return torch.get_default_device() if device is None else torch.device(device)
