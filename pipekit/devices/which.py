"""Which devices there are, what they are called, and how much memory they have."""

import os
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import torch

from pipekit.devices.streams import is_accelerator

CPU = torch.device("cpu")
KINDS = ("cuda", "xpu")
"""The kinds of accelerators in PyTorch that have streams and events (AMD's are "cuda", too)."""


def resolve(device: torch.device | str) -> torch.device:
    """Return a device with its index; an accelerator without one is the thread's current one."""
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"{device!r} is not a device: say 'cpu', or 'cuda:0'") from error
    if named.type == "cpu":
        return CPU
    count = device_count(named.type)
    if (named.index or 0) >= count:
        here = f"{count} of that kind are here" if count else "PyTorch finds none of that kind here"
        raise ValueError(f"{named} does not exist: {here}")
    if named.index is not None:
        return named
    return torch.device(named.type, torch.get_device_module(named.type).current_device())


def resolve_for_workers(
    devices: Sequence[torch.device | str] | None, workers: int
) -> list[torch.device]:
    """Return a device for each worker."""
    if devices is None:
        return list(islice(cycle(accelerators() or [CPU]), workers))
    if isinstance(devices, (str, torch.device)):
        raise ValueError(
            f"devices must be a list with one for each worker: [{str(devices)!r}] * {workers}"
        )
    if len(devices) != workers:
        raise ValueError(
            f"devices names {len(devices)} devices for {workers} workers: name one for each (the "
            f"same one may stand there several times)"
        )
    resolved = [resolve(device) for device in devices]
    if len(kinds := sorted({device.type for device in resolved})) > 1:
        raise ValueError(
            f"devices are of several kinds ({', '.join(kinds)}), between which workers pass "
            f"nothing: name devices of one kind"
        )
    return resolved


def accelerators() -> list[torch.device]:
    """Return all accelerators that PyTorch can use here, of one kind; of an added backend first.

    PyTorch's own answer, its "current accelerator", is what it was built for, not what is here.
    """
    added = torch._C._get_privateuse1_backend_name()
    for kind in (added, *KINDS):
        if count := device_count(kind):
            return [torch.device(kind, index) for index in range(count)]
    return []


def stay_on_cpu() -> None:
    """Hide GPUs from this process and from those it starts, unless PIPEKIT_DEVICE is set.

    Tests and the papers' notebooks are compared with what a CPU made, to the bit.
    """
    if "PIPEKIT_DEVICE" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # which AMD's PyTorch follows, too


def device_count(kind: torch.device | str) -> int:
    """Return how many devices of a kind PyTorch can use here."""
    try:
        return int(torch.get_device_module(kind).device_count())
    except (RuntimeError, AttributeError):  # a kind that nothing here is of, or not devices at all
        return 0


def name_of(device: torch.device) -> str:
    """Return what an accelerator is called, such as "NVIDIA H200"."""
    return str(torch.get_device_module(device).get_device_name(device))


def memory_bytes(device: torch.device) -> int:
    """Return how much memory an accelerator has."""
    _, total = torch.accelerator.get_memory_info(device)
    return total


def set_device(device: torch.device) -> None:
    """Make an accelerator this thread's current one: what names none by number means this one."""
    if is_accelerator(device):
        torch.accelerator.set_device_index(device)


def require_one_each(devices: Sequence[torch.device]) -> None:
    """Raise ValueError if two processes of this machine are to share a GPU, as NCCL refuses to."""
    for number, device in enumerate(devices):
        first = devices.index(device)
        if device.type == "cuda" and first < number:
            raise ValueError(
                f"workers {first} and {number} would share {device}, and NCCL gives no two "
                f"processes the same GPU: use transport='threads', whose workers may share one, or "
                f"devices=['cpu'] * {len(devices)}"
            )


def process_group(device: torch.device) -> dict[str, Any]:
    """Return what ``torch.distributed.init_process_group`` is to be given by a process on a device.

    Notes about tensors travel by gloo, and tensors between accelerators by what these have of their
    own, such as NCCL, which has to know the process's device.
    """
    if not is_accelerator(device):
        return {"backend": "gloo"}
    own = torch.distributed.get_default_backend_for_device(device)
    return {"backend": f"cpu:gloo,{device.type}:{own}", "device_id": device}
