"""Checkpoints that fill a disk: an error that names it, and the last whole checkpoint stays."""

import errno
import random
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from experiments.attacks.interrupts import batches
from experiments.attacks.parts import NAMED, UNHARMED, Row, pipeline
from pipekit import Checkpoints

WAY = "a full disk"


@contextmanager
def small_disk(size: int) -> Iterator[Path | None]:
    """Yield a folder with so many bytes of room; None where this process may not mount one."""
    with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "pipekit", folder]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def attack(tries: int, seed: int) -> Iterator[Row]:
    """Yield a row for each of so many trainings whose checkpoints fill a disk."""
    draw = random.Random(seed)
    whole = pipeline()
    whole.train(batches())
    for _ in range(tries):
        with small_disk(4096 * draw.randrange(4, 40)) as folder:
            if folder is None:
                yield Row(WAY, "not tried", "", "this process may not mount a disk")
                return
            yield filled(folder, whole.state_dict())


def filled(folder: Path, bits: dict[str, Any]) -> Row:
    """Train on a small disk, then go on from what is there; return what came of it."""
    try:
        pipeline().train(batches(), checkpoints=Checkpoints(folder, every=1, keep=4))
        outcome, failure, said = UNHARMED, "", ""
    except OSError as error:
        named = str(folder) in str(error) and error.errno == errno.ENOSPC
        outcome, failure, said = NAMED, "" if named else repr(error), str(error)
    except BaseException as error:
        return Row(WAY, "failed", repr(error), str(error))
    if rest := list(folder.rglob("*.tmp")):
        failure = f"left: {rest}"
    again = pipeline()
    again.resume(folder)
    again.train(batches())
    if any(not torch.equal(tensor, bits[name]) for name, tensor in again.state_dict().items()):
        failure = "other bits"
    return Row(WAY, outcome, failure, said.replace(str(folder), "..."))
