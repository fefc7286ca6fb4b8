"""How many CPU cores this process may use."""

import os


def available_cores() -> int:
    """Return the cores that this process may run on, or where nobody says so, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
