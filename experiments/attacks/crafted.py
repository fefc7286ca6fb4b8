"""Ways to damage, mix up or make up a part of a checkpoint."""

import hashlib
import io
import os
import pickle
import random
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from pipekit.engine.checkpoints import files


class Attacked(NamedTuple):
    """The newest checkpoint of a training, on which a try is made.

    Attributes:
        draw: random numbers.
        home: the newest checkpoint.
        older: the one before it.
        other: one of another training, made alike.
        canary: a file that whatever is executed makes.
    """

    draw: random.Random
    home: Path
    older: Path
    other: Path
    canary: Path

    @property
    def part(self) -> files.PartFile:
        """Any of its parts."""
        return self.draw.choice(files.parts_of(self.home))

    def like(self, part: files.PartFile, home: Path) -> files.PartFile:
        """The part of another checkpoint for the same stage and worker."""
        return next(p for p in files.parts_of(home) if p[:2] == part[:2])


def replaced(part: files.PartFile, content: bytes, place: str = "") -> None:
    """Put other bytes in the place of a part, under a name that has their sum."""
    place = place or f"stage{part.stage}.worker{part.worker}.of{part.parts}"
    part.path.unlink()
    digest = hashlib.sha256(content).hexdigest()[:16]
    part.path.with_name(f"{place}.{digest}.pt").write_bytes(content)


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


# --- Damage: the sum in the name does not hold any more -------------------------------------------


def flip_bits(a: Attacked) -> None:
    path = a.part.path
    content = bytearray(path.read_bytes())
    for _ in range(a.draw.choice([1, 1, 1, 8, 1000])):
        content[a.draw.randrange(len(content))] ^= 1 << a.draw.randrange(8)
    path.write_bytes(content)


def cut_short(a: Attacked) -> None:
    path = a.part.path
    os.truncate(path, a.draw.randrange(path.stat().st_size))


def lengthen(a: Attacked) -> None:
    with a.part.path.open("ab") as file:
        file.write(a.draw.randbytes(a.draw.randrange(1, 5000)))


def blank(a: Attacked) -> None:
    """A block of a disk comes back as zeros."""
    path = a.part.path
    content = bytearray(path.read_bytes())
    start = a.draw.randrange(len(content))
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content if any(content) else content + b"\1")


def exchange(a: Attacked) -> None:
    """Two parts change their contents."""
    one, other = (part.path for part in files.parts_of(a.home))
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


# --- Parts in the wrong place, whole as they are --------------------------------------------------


def of_another_boundary(a: Attacked) -> None:
    part = a.part
    replaced(part, a.like(part, a.older).path.read_bytes())


def of_another_training(a: Attacked) -> None:
    part = a.part
    replaced(part, a.like(part, a.other).path.read_bytes())


def of_another_training_renamed(a: Attacked) -> None:
    """By somebody who knows of attempts."""
    part = a.part
    content = torch.load(a.like(part, a.other).path, weights_only=True)
    content["about"]["attempt"] = a.home.name.rpartition("-")[2]
    replaced(part, saved(content))


def in_anothers_place(a: Attacked) -> None:
    first, second = files.parts_of(a.home)
    kept, lost = a.draw.choice([(first, second), (second, first)])
    worker, stage = a.draw.choice([(lost.worker, lost.stage), (kept.worker, lost.stage)])
    replaced(lost, kept.path.read_bytes(), f"stage{stage}.worker{worker}.of{lost.parts}")


def twice(a: Attacked) -> None:
    """One stage's part stands for the other's, too, under a name of its own."""
    first, second = files.parts_of(a.home)
    kept, lost = a.draw.choice([(first, second), (second, first)])
    content = torch.load(kept.path, weights_only=True)
    content["losses"] = [*content["losses"], (0, 0.5)]
    replaced(lost, saved(content), f"stage{kept.stage}.worker{kept.worker}.of{lost.parts}")


# --- Files that are none, and names that lead elsewhere -------------------------------------------


def a_pipe(a: Attacked) -> None:
    path = a.part.path
    path.unlink()
    os.mkfifo(path)


def a_folder(a: Attacked) -> None:
    path = a.part.path
    path.unlink()
    path.mkdir()


def a_device(a: Attacked) -> None:
    path = a.part.path
    path.unlink()
    path.symlink_to(a.draw.choice(["/dev/zero", "/dev/random", "/dev/stdin"]))


def a_link_to_nothing(a: Attacked) -> None:
    path = a.part.path
    path.unlink()
    path.symlink_to(a.draw.choice(["nowhere", path.name, "../../../nowhere"]))


def a_link_to_a_file(a: Attacked) -> None:
    path = a.part.path
    path.unlink()
    path.symlink_to(a.draw.choice(["/etc/passwd", "/proc/self/mem", "/proc/self/environ"]))


def odd_names(a: Attacked) -> None:
    """Beside the checkpoint's own: nobody takes them for parts of one."""
    for name in ("stage0.worker0.of2.pt", "stage-1.worker0.of2." + "0" * 16 + ".pt", "..pt", "\n"):
        (a.home / name).write_bytes(b"odd")
    for name in ("batch-99999999-", "batch-" + "9" * 200, "batch-00000009-zz", "batch-٣٣٣٣٣٣٣٣-0"):
        (a.home.parent / name).mkdir()
    (a.home.parent / "batch-99999998-ffff").write_text("no folder")


def a_folder_that_leads_elsewhere(a: Attacked) -> None:
    """Cut-off writes are deleted there, and later the whole folder."""
    elsewhere = a.home.parent.parent / "precious.tmp"
    elsewhere.write_text("nobody deletes this")
    link = a.home.parent / a.draw.choice(["batch-00000000-ffff", "batch-99999999-ffff"])
    link.symlink_to(a.draw.choice([str(elsewhere.parent), link.name, "nowhere"]))


def a_lock_that_leads_elsewhere(a: Attacked) -> None:
    """Who takes the lock writes his name into the file."""
    lock = a.home.parent / ".lock"
    if a.draw.random() < 0.5:
        lock.symlink_to(a.home.parent.parent / "precious")
    else:
        os.mkfifo(lock)


# --- Code -----------------------------------------------------------------------------------------


class Calls:
    """Whose unpickling calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def code(a: Attacked) -> None:
    part, canary = a.part, str(a.canary)
    calls: list[Any] = [
        Calls(os.mkdir, canary),
        Calls(os.system, f"touch {canary}"),
        Calls(exec, f"open({canary!r}, 'w')"),
        Calls(eval, f"__import__('pathlib').Path({canary!r}).touch()"),
        Calls(getattr, Calls(__import__, "os"), "mkdir"),
        Calls(torch.load, canary),
        Calls(subprocess.run, ["touch", canary]),  # which is over before anybody looks
    ]
    call = a.draw.choice(calls)
    content = torch.load(part.path, weights_only=True)
    where = a.draw.choice(["whole", "entry", "state", "key", "name"])
    if where == "whole":
        content = call
    elif where == "entry":
        content[a.draw.choice(list(content))] = call
    elif where == "state":
        content["state"]["optimizer"] = {"x": [call]}
    else:
        content["buffers" if where == "key" else "parameters"] = {("a", call): torch.zeros(1)}
    how = a.draw.choice(["zip", "zip", "legacy", "pickle", "inserted"])
    if how == "zip":
        made = saved(content)
    elif how == "legacy":
        file = io.BytesIO()
        torch.save(content, file, _use_new_zipfile_serialization=False)
        made = file.getvalue()
    elif how == "pickle":
        made = pickle.dumps(call, a.draw.randrange(6))
    else:  # in the place of the archive's own pickle
        made = _archive(part.path.read_bytes(), pickle.dumps(call, 2))
    replaced(part, made)


def _archive(archive: bytes, pickled: bytes) -> bytes:
    """Return an archive of torch's with another pickle in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "w") as new:
        for entry in old.infolist():
            own = entry.filename.endswith("data.pkl")
            new.writestr(entry, pickled if own else old.read(entry))
    return file.getvalue()


def a_program(a: Attacked) -> None:
    """A TorchScript archive, which torch.load would know how to load."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), file)
    replaced(a.part, file.getvalue())


def no_checkpoint(a: Attacked) -> None:
    nothing = [b"", b"\0" * 99, b"PK\3\4", b"\x80\x02.", b"[]", saved([1]), saved({"format": 2}),
               saved({"format": 1}), saved({"format": True}), a.draw.randbytes(3000)]  # fmt: skip
    replaced(a.part, a.draw.choice(nothing))


# --- Made up, with the right sum ------------------------------------------------------------------


def bytes_changed(a: Attacked) -> None:
    part = a.part
    content = bytearray(part.path.read_bytes())
    for _ in range(a.draw.choice([1, 3, 30])):
        content[a.draw.randrange(len(content))] = a.draw.randrange(256)
    replaced(part, bytes(content))


def values_changed(a: Attacked) -> None:
    """A value somewhere in the content is another one, or missing."""
    part = a.part
    content = torch.load(part.path, weights_only=True)
    odd: list[Any] = [None, True, -1, 0, 2**40, 10**400, 1.5, float("nan"), "", "x" * 999, [], {}]
    odd += [torch.zeros(0), torch.zeros(2, 3, 4), torch.zeros(()), torch.full((12,), torch.nan)]
    odd += [torch.zeros(1).expand(10**9), torch.zeros(6, 12, dtype=torch.complex64)]
    odd += [torch.eye(6).to_sparse(), torch.zeros(12, dtype=torch.int64), [(0, 1.0)] * 3]
    for _ in range(a.draw.choice([1, 1, 2])):
        holder, key = a.draw.choice(list(_places(content)))
        if isinstance(holder, dict) and a.draw.random() < 0.2:
            del holder[key]
        else:
            holder[key] = a.draw.choice(odd)
    replaced(part, saved(content))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder of values within a tree, and the key or index of each value."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)
