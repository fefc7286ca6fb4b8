"""What must not cost a training: two writers, interrupts, full disks, batches that are NaN."""

import errno
import fcntl
import os
import shutil
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import pipekit as pk
from pipekit.engine.checkpoints import files
from pipekit.engine.checkpoints.folder import FolderLock
from tests.engine.examples import Midst, data, different, mlp, pipeline


def pipe(**options: Any) -> pk.Pipeline:
    return pipeline(mlp(6, 6, 3), "flush", [1, 1], **options)


def homes(folder: Path) -> list[Path]:
    return sorted(home for home in folder.iterdir() if home.name.startswith("batch-"))


def saved(folder: Path, batches: int = 3, **options: Any) -> Path:
    """A folder with the checkpoint of a training."""
    pipe(**options).train(data(batches), checkpoints=folder)
    return folder


# --- one training, one folder --------------------------------------------------------------------


def test_two_trainings_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """Not even before either has written: the second is told at once, and the first goes on."""
    told: list[str] = []

    def second() -> None:
        read: list[int] = []
        with pytest.raises(ValueError, match="another training writes its checkpoints") as caught:
            pipe().train(Midst(data(3), 0, lambda: read.append(1)), checkpoints=tmp_path)
        assert read == []
        told.append(str(caught.value))

    first = pipe()
    first.train(Midst(data(4), 2, second), checkpoints=tmp_path)
    assert f"process {os.getpid()} on" in told[0]
    assert first.train(data(2), checkpoints=tmp_path).losses
    assert not list(tmp_path.glob(".*")), "the lock is gone"
    with pytest.raises(ValueError, match="of another training"):
        pipe().train(data(3), checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("owner", "call"),
    [(fcntl, "flock"), (Path, "unlink")],
    ids=["lock", "end of the lock"],
)
def test_an_interrupt_while_a_file_is_opened_or_closed_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, call: str
) -> None:
    original = getattr(owner, call)

    def interrupted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipe().train(data(2), checkpoints=tmp_path)
    monkeypatch.undo()
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [link for link in links if link.startswith(str(tmp_path))]
    assert not list(tmp_path.glob(".*")), "the lock is gone"


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    if not (process := os.fork()):
        FolderLock().take(tmp_path)
        os.write(writer, b"taken")
        signal.pause()
    assert os.read(reader, 5) == b"taken"
    mine = FolderLock()
    assert f"process {process} on" in str(mine.take(tmp_path))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    os.close(reader)
    os.close(writer)
    assert mine.take(tmp_path) is None
    mine.give_back()
    assert list(tmp_path.iterdir()) == []
    assert mine.take(tmp_path) is None
    (tmp_path / ".lock").unlink()  # as who clears the folder meanwhile
    mine.give_back()


def test_who_goes_on_with_a_training_takes_it_over(tmp_path: Path) -> None:
    first = pipe()
    first.train(data(2), checkpoints=tmp_path)
    second = pipe()
    assert second.resume(tmp_path) == 0
    second.train(data(2), checkpoints=tmp_path)
    second.train(data(2), checkpoints=tmp_path)
    with pytest.raises(ValueError, match="another process has gone on with this training"):
        first.train(data(2), checkpoints=tmp_path)
    assert first.resume(tmp_path) == 1
    first.train(data(2), checkpoints=tmp_path)
    assert different(dict(first.state_dict()), dict(second.state_dict())) == []


def test_what_a_killed_write_left_is_deleted(tmp_path: Path) -> None:
    (home,) = homes(saved(tmp_path))
    (home / "tmpabc.tmp").write_bytes(b"cut off")
    again = pipe()
    again.resume(tmp_path)
    again.train(data(3), checkpoints=tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


# --- disks ---------------------------------------------------------------------------------------


def test_a_folder_is_tried_before_the_first_batch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    read: list[int] = []
    batches = Midst(data(4), 0, lambda: read.append(1))
    with pytest.raises(OSError, match="file"):
        pipe().train(batches, checkpoints=tmp_path / "file" / "folder")
    assert read == []


class Full:
    """A disk on which so many bytes have room; only files of checkpoints lie there."""

    def __init__(self, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = room
        write = files._Hashing.write

        def limited(hashing: Any, content: bytes) -> int:
            self.room -= len(content)
            if self.room < 0:
                hashing._file.write = self._fail
            return write(hashing, content)

        monkeypatch.setattr(files._Hashing, "write", limited)

    def _fail(self, _: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("more", [0, 1000, 3000])
def test_a_full_disk_leaves_the_last_checkpoint(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pipe()
    whole.train(data(6))
    (home,) = homes(saved(tmp_path / "x"))
    size = sum(part.path.stat().st_size for part in files.parts_of(home))
    with monkeypatch.context() as patch:
        full = Full(2 * size + 2000 + more, patch)
        with pytest.raises(OSError, match="No space left on device") as caught:
            pipe().train(data(6), checkpoints=pk.Checkpoints(tmp_path / "y", every=1))
    assert caught.value.errno == errno.ENOSPC
    assert full.room < 0
    assert not list((tmp_path / "y").rglob("*.tmp"))
    again = pipe()
    again.resume(tmp_path / "y")
    again.train(data(6), checkpoints=tmp_path / "y")
    assert different(dict(again.state_dict()), dict(whole.state_dict())) == []


# --- what stays ----------------------------------------------------------------------------------


def spoilt(batches: int, at: int) -> list[Any]:
    found = data(batches)
    found[at] = (found[at][0] * torch.nan, found[at][1])
    return found


def test_a_batch_that_is_not_a_number_does_not_fill_all_checkpoints(tmp_path: Path) -> None:
    pipe().train(spoilt(8, at=3), checkpoints=pk.Checkpoints(tmp_path, every=1))
    assert [int(home.name[6:14]) for home in homes(tmp_path)] == [3, 7, 8]
    finite = [files.is_complete(home, finite=True) for home in homes(tmp_path)]
    assert finite == [True, False, False]
    with pytest.warns(UserWarning, match="not finite: delete it"):
        pipe().resume(tmp_path)
    for home in homes(tmp_path)[1:]:
        shutil.rmtree(home)
    again, whole = pipe(), pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.resume(tmp_path)
    whole.train(data(3))
    assert different(dict(again.state_dict()), dict(whole.state_dict())) == []


@pytest.mark.parametrize("keep", [1, 4])
def test_as_many_stay_as_are_wanted(keep: int, tmp_path: Path) -> None:
    pipe().train(data(6), checkpoints=pk.Checkpoints(tmp_path, every=1, keep=keep))
    assert [int(home.name[6:14]) for home in homes(tmp_path)] == [*range(7 - keep, 7)]


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_changed_learning_rate_is_told(scheduled: bool, tmp_path: Path) -> None:
    def with_rate(rate: float) -> pk.Pipeline:
        options: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=rate)}
        if scheduled:
            options["lr_scheduler"] = partial(torch.optim.lr_scheduler.StepLR, step_size=1)
        return pipe(**options)

    with_rate(0.5).train(data(2), checkpoints=tmp_path)
    other = with_rate(0.25)
    other.resume(tmp_path)
    name = "initial_lr" if scheduled else "lr"
    with pytest.warns(UserWarning, match=rf"options of the checkpoint: {name}=0.5 and not 0.25"):
        other.train(data(3), checkpoints=tmp_path)
    same = with_rate(0.5)
    same.resume(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.train(data(4), checkpoints=tmp_path)
