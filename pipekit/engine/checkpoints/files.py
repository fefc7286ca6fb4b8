"""Checkpoints on disk: a folder for each, in it one file for each stage of each worker.

    checkpoints/batch-00000020-9f2c41d0/stage0.worker0.of3.6d1b3c5f8a90e2d4.pt

20 is the number of batches trained on, ``9f2c41d0`` the attempt: after each resumption it is
another, so that files from before and after never make one checkpoint.  A checkpoint is complete
when the files of all workers are there (here 3); nobody needs to say so.  A file's name ends with
the first digits of its SHA-256, as torch.hub's do, so that file and checksum come into being
together, by one rename.
"""

import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

FORMAT = 1
KEPT = 2
"""Complete checkpoints that stay: the newest, and one in case that it is damaged."""

_FOLDER = re.compile(r"batch-(\d{8,})-[0-9a-f]+")
_FILE = re.compile(r"stage(\d+)\.worker(\d+)\.of(\d+)\.([0-9a-f]{16})\.pt")

Content = dict[str, Any]


class Part(NamedTuple):
    """One file.

    Attributes:
        stage: whose state it holds.
        worker: who wrote it.
        parts: how many files the checkpoint has.
        digest: the first digits of its SHA-256.
        path: where it is.
    """

    stage: int
    worker: int
    parts: int
    digest: str
    path: Path

    @property
    def sound(self) -> bool:
        """Whether the file still is what was written."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest().startswith(self.digest)


def write(folder: Path, batches: int, attempt: str, parts: int, content: Content) -> None:
    """Write a worker's part of a checkpoint, and let go of checkpoints that are no longer needed.

    Args:
        folder: of all checkpoints.
        batches: how many have been trained on.
        attempt: hexadecimal digits that are new after each resumption.
        parts: how many parts this checkpoint will have.
        content: ``stage`` and ``worker``, and what is to be kept: tensors and plain values.

    Raises:
        TypeError: the content holds an object that could not be loaded safely.
        OSError: it cannot be written.
    """
    home = folder / f"batch-{batches:08d}-{attempt}"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=home, suffix=".tmp", delete=False) as file:
        hashing = _Hashing(file)
        torch.save(content | {"format": FORMAT}, cast(Any, hashing))
        file.flush()
        os.fsync(file.fileno())
    temporary = Path(file.name)
    try:
        torch.load(temporary, weights_only=True, mmap=True)
    except Exception as error:
        temporary.unlink()
        raise TypeError(
            f"the state of the optimizer or of the lr_scheduler holds an object that cannot be "
            f"loaded again without running code from a file; use tensors and plain values ({error})"
        ) from None
    name = f"stage{content['stage']}.worker{content['worker']}.of{parts}.{hashing.digest}.pt"
    temporary.replace(home / name)
    _sync(home)
    _prune(folder, attempt)


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete and undamaged, or None.

    Warns:
        UserWarning: naming each damaged file that made it go back to an earlier one.
    """
    for home in reversed(_all(folder)):
        if not is_complete(home):
            continue
        damaged = [part.path for part in parts_of(home) if not part.sound]
        if not damaged:
            return home
        warnings.warn(
            f"{damaged[0]} is damaged: its checksum does not hold; the checkpoint before it is "
            f"used if there is one",
            stacklevel=3,
        )
    return None


def parts_of(home: Path) -> list[Part]:
    """Return a checkpoint's files, by stage and worker."""
    return sorted(_parts(home))


def is_complete(home: Path) -> bool:
    """Return whether all parts of a checkpoint are there."""
    parts = parts_of(home)
    return bool(parts) and len(parts) == parts[0].parts


def load(part: Part) -> Content:
    """Return what was written, with its tensors on the CPU.

    Raises:
        ValueError: it was written by another version of pipekit.
    """
    content: Content = torch.load(part.path, map_location="cpu", weights_only=True)
    if content["format"] != FORMAT:
        raise ValueError(
            f"{part.path} has format {content['format']}, and this pipekit reads {FORMAT}: load it "
            f"with the version that wrote it"
        )
    return content


def load_part(home: Path, stage: int, worker: int) -> Content:
    """Return what a worker wrote of a stage."""
    return next(load(part) for part in parts_of(home) if part[:2] == (stage, worker))


def require_empty(folder: Path) -> None:
    """Raise ValueError if a folder holds checkpoints, of whichever training."""
    if _all(folder):
        raise ValueError(
            f"{folder} holds checkpoints of another training: call resume({str(folder)!r}) first "
            f"(in the shell: --resume), or name another folder"
        )


class _Hashing:
    """A file that reckons its checksum from what is written, not from what the disk made of it."""

    def __init__(self, file: Any) -> None:
        self._file, self._sha = file, hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._sha.hexdigest()[:16]

    def write(self, data: bytes) -> int:
        self._sha.update(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()


def _all(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, complete or not, the oldest first."""
    if not folder.is_dir():
        return []
    found = [(match, home) for home in folder.iterdir() if (match := _FOLDER.fullmatch(home.name))]
    return [home for _, home in sorted((int(match[1]), home) for match, home in found)]


def _parts(home: Path) -> Iterator[Part]:
    try:
        names = os.listdir(home)
    except FileNotFoundError:  # another worker has let go of it
        return
    for match in filter(None, map(_FILE.fullmatch, names)):
        stage, worker, parts = map(int, match.groups()[:3])
        yield Part(stage, worker, parts, match[4], home / match[0])


def _prune(folder: Path, attempt: str) -> None:
    """Delete what is older than this attempt's last KEPT complete checkpoints.

    All workers have passed these, so that nobody is still writing an older one.  Those of earlier
    attempts do not count: they may be the damaged ones that this attempt had to go back from.
    """
    homes = _all(folder)
    own = [n for n, home in enumerate(homes) if home.name.endswith(attempt) and is_complete(home)]
    for home in homes[: own[-KEPT]] if len(own) >= KEPT else ():
        shutil.rmtree(home, ignore_errors=True)  # another worker may be at it, too


def _sync(folder: Path) -> None:
    """Let a rename reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
