"""Where a number comes from: its label, the software, the hardware, the commit and the seed.

Every file of results has such a record beside it.
"""

import functools
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipekit.units import plural
from pipekit.writing import write_whole

LABELS = {
    "measured": "real compute on the named hardware",
    "emulated": "the real engine with modelled compute and links",
    "simulated": "events computed, nothing run",
    "exact": "a closed form or an algorithm",
    "paper": "printed in the cited paper",
}
"""The five kinds of numbers, each with what it means."""


def provenance(label: str, seed: int | None = None, **extra: Any) -> dict[str, Any]:
    """Describe how the numbers beside this record were made.

    Args:
        label: one of :data:`LABELS`.
        seed: of the random numbers, if any were drawn.
        extra: further JSON values to keep, say the parameters of the experiment.

    Returns:
        A JSON-able dict.  ``memory_gb`` is in 10^9 bytes; ``commit`` is None outside a git checkout
        and ends in "-dirty" when tracked files were changed.

    Raises:
        ValueError: the label is unknown, or an extra key hides one of the record's own.
    """
    if label not in LABELS:
        raise ValueError(f"label must be one of {', '.join(LABELS)}, not {label!r}")
    record = {
        "label": label,
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        **_machine(),
        "commit": _commit(),
    }
    if clash := sorted(record.keys() & extra.keys()):
        raise ValueError(f"rename the extra key {clash[0]!r}: provenance records it itself")
    return record | extra


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as indented JSON, making the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record, indent=2, allow_nan=False) + "\n")


@functools.cache
def _machine() -> dict[str, Any]:
    # Here, since torch takes seconds, and who reads results needs none of it.
    import torch

    from pipekit.devices import accelerators, name_of

    try:
        known: str | None = version("pipekit")
    except PackageNotFoundError:  # imported from a folder, never installed
        known = None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pipekit": known,
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpus": [name_of(device) for device in accelerators()],
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def _commit() -> str | None:
    return _commit_of(Path(__file__))


def _commit_of(source: Path) -> str | None:
    # Installed packages may lie inside someone else's checkout (say in its .venv): only a checkout
    # that tracks this very file names our commit.
    if _git(source.parent, "ls-files", "--error-unmatch", source.name) is None:
        return None
    return _git(source.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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
