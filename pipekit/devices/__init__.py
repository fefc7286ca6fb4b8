"""The only package that talks to accelerators.

It does so through PyTorch's interface for all kinds of them (``torch.accelerator``,
``torch.Stream``, ``torch.Event``, ``torch.get_device_module``), so that every kind takes the same
lines.  Every function is given the device: the user named it, or a tensor lies on it.
"""

from pipekit.devices.moves import Mover
from pipekit.devices.random_states import (
    RandomState,
    new_generators,
    random_states,
    random_states_put_back,
)
from pipekit.devices.streams import (
    Clock,
    Copier,
    Event,
    HostNumber,
    ThreadStreams,
    current_stream,
    keep_for_current_stream,
    moved,
    new_stream,
    on_stream,
    record_event,
    record_events,
    synchronize,
    to_device,
    unix_ns,
    wait_event,
    wait_events,
)
from pipekit.devices.which import (
    CPU,
    accelerators,
    device_count,
    is_accelerator,
    memory_bytes,
    name_of,
    peak_bytes,
    process_group,
    reset_peak_bytes,
    resolve,
    resolve_for_workers,
    set_device,
)

__all__ = [
    "CPU",
    "Clock",
    "Copier",
    "Event",
    "HostNumber",
    "Mover",
    "RandomState",
    "ThreadStreams",
    "accelerators",
    "current_stream",
    "device_count",
    "is_accelerator",
    "keep_for_current_stream",
    "memory_bytes",
    "moved",
    "name_of",
    "new_generators",
    "new_stream",
    "on_stream",
    "peak_bytes",
    "process_group",
    "random_states",
    "random_states_put_back",
    "record_event",
    "record_events",
    "reset_peak_bytes",
    "resolve",
    "resolve_for_workers",
    "set_device",
    "synchronize",
    "to_device",
    "unix_ns",
    "wait_event",
    "wait_events",
]
