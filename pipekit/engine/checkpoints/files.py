"""Checkpoints on disk: a folder for each, with one file for each stage of each worker.

    checkpoints/batch-00000020-9f2c41d0/stage0.worker0.of3.6d1b3c5f8a90e2d4.pt

20 batches were trained on.  ``9f2c41d0`` names the attempt, which changes at each resumption.  The
checkpoint is complete when all 3 files are there.  A file's name ends with the first digits of its
SHA-256, so that one rename makes file and checksum, and with ``.nonfinite.pt`` where weights or the
last loss are not finite.
"""

import hashlib
import io
import os
import pickle
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from pipekit.engine.config import CheckpointConfig
from pipekit.host.user_frames import warn
from pipekit.writing import sync

FORMAT = 2
_FOLDER = re.compile(r"batch-(\d{8,})-[0-9a-f]+")
_FILE = re.compile(r"stage(\d+)\.worker(\d+)\.of(\d+)\.([0-9a-f]{16})(\.nonfinite)?\.pt")

Content = dict[str, Any]


class PartFile(NamedTuple):
    """One file: a worker's part, of one stage, of a checkpoint with so many parts."""

    stage: int
    worker: int
    parts: int
    digest: str
    finite: bool
    path: Path

    @property
    def sound(self) -> bool:
        with _named(self.path), self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest().startswith(self.digest)


def write(config: CheckpointConfig, batches: int, content: Content, finite: bool = True) -> None:
    """Write a worker's part of a checkpoint, and delete checkpoints that are no longer needed.

    A TypeError says that the content could not be loaded safely, an OSError where it cannot be
    written; then nothing is left of it.
    """
    folder, attempt = config.folder, config.about["attempt"]
    home = folder / f"batch-{config.about['batches'] + batches:08d}-{attempt}"
    home.mkdir(parents=True, exist_ok=True)
    file = tempfile.NamedTemporaryFile(dir=home, suffix=".tmp", delete=False)  # noqa: SIM115
    temporary, hashing = Path(file.name), _Hashing(file)
    try:
        with _named(home), file:
            hashing.save(content | {"format": FORMAT})
        try:
            torch.load(temporary, weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:  # and no want of memory, say
            raise TypeError(
                f"the state of the optimizer or of the lr_scheduler holds an object that cannot be "
                f"loaded again without running code from a file; use tensors and plain values "
                f"({error})"
            ) from None
        who = f"stage{content['stage']}.worker{content['worker']}.of{config.parts}"
        ending = "pt" if finite else "nonfinite.pt"
        temporary.replace(home / f"{who}.{hashing.digest}.{ending}")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(home)
    _prune(folder, attempt, config.keep)


def clear(folder: Path) -> None:
    """Delete the remains of writes that were cut off; nobody may be writing there."""
    for home in _all(folder):
        for temporary in home.glob("*.tmp"):
            temporary.unlink(missing_ok=True)


def attempts(folder: Path) -> set[str]:
    """Return the attempts whose checkpoints a folder holds, complete or not."""
    return {home.name.rpartition("-")[2] for home in _all(folder)}


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete and undamaged, or None.

    A warning names each damaged file that made it go back to an earlier one.
    """
    for home in reversed(_all(folder)):
        if not is_complete(home):
            continue
        damaged = [part.path for part in parts_of(home) if not part.sound]
        if not damaged:
            if not is_complete(home, finite=True):
                warn(
                    f"the weights or the last loss in {home} are not finite: delete it to go back "
                    f"to the checkpoint before it"
                )
            return home
        warn(
            f"{damaged[0]} is damaged: its checksum does not hold; the checkpoint before it is "
            f"used if there is one"
        )
    return None


def parts_of(home: Path) -> list[PartFile]:
    """Return a checkpoint's files, by stage and worker."""
    try:
        names = os.listdir(home)
    except FileNotFoundError:  # another worker has deleted it
        return []
    found = []
    for match in filter(None, map(_FILE.fullmatch, names)):
        stage, worker, parts = map(int, match.groups()[:3])
        path = home / match[0]
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:  # likewise
            continue
        if not stat.S_ISREG(mode):  # a reader of a pipe waits for ever
            raise ValueError(f"{path} is not a file: delete it")
        found.append(PartFile(stage, worker, parts, match[4], match[5] is None, path))
    return sorted(found)


def is_complete(home: Path, finite: bool = False) -> bool:
    """Return whether all parts of a checkpoint are there, and if asked, hold finite numbers."""
    parts = parts_of(home)  # once: another worker may be deleting them, the others first
    complete = bool(parts) and len(parts) == parts[0].parts
    return complete and (not finite or all(part.finite for part in parts))


def load(part: PartFile) -> Content:
    """Return what was written, with its tensors on the CPU; a ValueError: not by this pipekit."""
    try:
        with _named(part.path):
            content: Content = torch.load(part.path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # whose advice is to load it in a way that runs whatever code is in it
        content = {}
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise ValueError(
            f"{part.path} is not a part of a checkpoint that pipekit wrote: it does not hold "
            f"tensors and plain values under their names"
        )
    if content["format"] != FORMAT:
        raise ValueError(
            f"{part.path} has format {content['format']}, and this pipekit reads {FORMAT}: load it "
            f"with the version that wrote it"
        )
    return content


def require_empty(folder: Path) -> None:
    """Raise ValueError if a folder holds checkpoints, of whichever training."""
    if _all(folder):
        raise ValueError(
            f"{folder} holds checkpoints of another training: call resume({str(folder)!r}) first "
            f"(in the shell: --resume), or name another folder"
        )


def require_plain(states: Mapping[str, object]) -> None:
    """Raise TypeError if an extra state of a module is more than tensors and plain values."""
    for name, state in states.items():
        file = io.BytesIO()
        try:
            torch.save(state, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:  # of whatever kind: an object says itself why it cannot be saved
            raise TypeError(
                f"a checkpoint cannot hold the extra state {name!r}, a {type(state).__name__}: let "
                f"get_extra_state() give tensors and plain values only, in lists or dicts ({error})"
            ) from None


class _Hashing:
    """A file that computes its checksum from what is written, not from what the disk made of it."""

    def __init__(self, file: Any) -> None:
        self._file, self._sha = file, hashlib.sha256()
        self._error: OSError | None = None
        self.flush = file.flush

    @property
    def digest(self) -> str:
        return self._sha.hexdigest()[:16]

    def write(self, data: bytes) -> int:
        self._sha.update(data)
        try:
            return int(self._file.write(data))
        except OSError as error:
            self._error = error
            raise

    def save(self, content: Content) -> None:
        """Write a content, to the disk; PyTorch says of a full one only that it has failed."""
        try:
            torch.save(content, cast(Any, self))
            self.flush()
            os.fsync(self._file.fileno())
        except Exception:
            if self._error is None:
                raise
            raise self._error from None


@contextmanager
def _named(where: Path) -> Iterator[None]:
    """Let an error of reading or writing name where; some come only when a file is closed."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(where)) from None


def _all(folder: Path) -> list[Path]:
    """Return the folders of all checkpoints, complete or not, the oldest first."""
    if _FOLDER.fullmatch(folder.name):
        raise ValueError(f"{folder} is one checkpoint: name the folder of all, {folder.parent}")
    if not folder.exists():
        return []
    found = []
    for home in folder.iterdir():
        match = _FOLDER.fullmatch(home.name)
        if match and home.is_symlink():  # files are deleted in these folders
            raise ValueError(f"{home} is a link and not a folder of checkpoints: delete it")
        if match and home.is_dir():
            found.append((int(match[1]), home))
    return [home for _, home in sorted(found)]


def _prune(folder: Path, attempt: str, keep: int) -> None:
    """Delete what is older than this attempt's last so many complete checkpoints.

    All workers have passed these.  Those of earlier attempts do not count: this one may have gone
    back from them, as damaged ones.  The last finite one stays, whosever it is.
    """
    homes = _all(folder)
    complete = [home for home in homes if is_complete(home)]
    ours = [homes.index(home) for home in complete if home.name.endswith(attempt)]
    finite = [home for home in complete if is_complete(home, finite=True)]
    for home in homes[: ours[-keep]] if len(ours) >= keep else ():
        if home not in finite[-1:]:
            shutil.rmtree(home, ignore_errors=True)  # another worker may be at it, too
