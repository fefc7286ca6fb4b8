"""How many CPU cores this process may use."""

import os

from pipekit.units import plural


def available_cores() -> int:
    """Return the cores that this process may run on, or where nobody says so, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_on_cores(workers: int) -> str:
    """Return on what workers run here, in words: who shares a core is slower for that alone."""
    cores = available_cores()
    verb = "share" if workers > cores else "have" if workers > 1 else "has"
    return f"{plural(workers, 'worker')} {verb} {plural(cores, 'core')}"
