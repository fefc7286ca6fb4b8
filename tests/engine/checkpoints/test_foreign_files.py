"""What must not pass for a part of a checkpoint: files of others, crafted or damaged."""

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipekit as pk
from pipekit.engine.checkpoints import files
from pipekit.engine.config import CheckpointConfig
from tests.engine.checkpoints.test_attacks import homes, pipe, saved
from tests.engine.examples import data

Content = dict[str, Any]


def rewritten(
    part: files.PartFile, change: Callable[[Content], object], to: Path | None = None
) -> Path:
    """Put a part into a folder with other content, under a name that has its sum."""
    content = torch.load(part.path, weights_only=True)
    change(content)
    home = to or part.path.parent
    part.path.unlink(missing_ok=True)
    before = set(home.iterdir())
    scratch = home.parent / "scratch"
    written = alone(scratch, part.parts, content | {"stage": part.stage, "worker": part.worker})
    path = home / written.name
    written.rename(path)
    shutil.rmtree(scratch)
    assert path not in before
    return path


def alone(scratch: Path, parts: int, content: Content) -> Path:
    about = {"batches": 0, "attempt": "aaaa"}
    files.write(CheckpointConfig(scratch, about, parts, (), 2, ()), 1, content)
    (written,) = scratch.glob("*/*.pt")
    return written


def test_parts_of_two_trainings_make_no_checkpoint(tmp_path: Path) -> None:
    mine, theirs = saved(tmp_path / "mine"), saved(tmp_path / "theirs", loss=nn.L1Loss())
    (home,), (other,) = homes(mine), homes(theirs)
    own, foreign = files.parts_of(home)[1], files.parts_of(other)[1]
    own.path.unlink()
    shutil.copy(foreign.path, home)
    with pytest.raises(ValueError, match=rf"{foreign.path.name} was written as stage 1 of work"):
        pipe().resume(mine)
    # The same, by somebody who knows of attempts.
    (home / foreign.path.name).unlink()
    attempt = home.name.rpartition("-")[2]
    path = rewritten(foreign, lambda c: c["about"].update(attempt=attempt), to=home)
    with pytest.raises(ValueError, match=rf"{path.name} is of another training"):
        pipe().resume(mine)


def test_parts_of_two_boundaries_make_no_checkpoint(tmp_path: Path) -> None:
    pipe().train(data(4), checkpoints=pk.Checkpoints(tmp_path, every=2))
    early, late = homes(tmp_path)
    files.parts_of(late)[0].path.unlink()
    stale = files.parts_of(early)[0].path
    shutil.copy(stale, late)
    with pytest.raises(ValueError, match=rf"{stale.name} was written as stage 0 .*batch-00000002"):
        pipe().resume(tmp_path)


@pytest.mark.parametrize("what", ["stage", "worker"])
def test_a_part_in_anothers_place(what: str, tmp_path: Path) -> None:
    (home,) = homes(saved(tmp_path))
    first, second = files.parts_of(home)
    second.path.unlink()
    other = f"stage{1}.worker{1}" if what == "stage" else "stage1.worker0"
    name = first.path.name.replace("stage0.worker0", other)
    shutil.copy(first.path, home / name)
    with pytest.raises(ValueError, match=rf"{name} was written as stage 0"):
        pipe().resume(tmp_path)


CRAFTED: dict[str, Callable[[Content], object]] = {
    "no weights": lambda c: c.pop("parameters"),
    "weights that are numbers": lambda c: c.update(parameters={"0.weight": 3.0}),
    "a boundary of text": lambda c: c.update(boundary="here"),
    "about nothing": lambda c: c.update(about=None),
    "no random state": lambda c: c["about"].pop("rng"),
    "losses of text": lambda c: c.update(losses=["low"]),
    "a negative version": lambda c: c.update(older={"x": {}}),
}


@pytest.mark.parametrize("how", CRAFTED)
def test_a_crafted_part_is_named(how: str, tmp_path: Path) -> None:
    (home,) = homes(saved(tmp_path))
    path = rewritten(files.parts_of(home)[0], CRAFTED[how])
    with pytest.raises(ValueError, match=rf"{path.name} is not a part of a checkpoint"):
        pipe().resume(tmp_path)


class Runs:
    """Whose unpickling would run something."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_code_in_a_part_is_not_run_nor_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (home,) = homes(saved(tmp_path / "saved"))
    for number, bad in enumerate((pickle.dumps(Runs(), 2), b"\0" * 99, b"")):
        part = files.parts_of(home)[0]
        part.path.unlink()
        digest = hashlib.sha256(bad).hexdigest()[:16]
        path = home / f"stage0.worker0.of2.{digest}.pt"
        path.write_bytes(bad)
        with pytest.raises(
            ValueError, match=rf"{path.name} is not a part of a checkpoint"
        ) as caught:
            pipe().resume(tmp_path / "saved")
        assert "weights_only" not in f"{caught.value}", number
    assert not Path("ran").exists()


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    (home,) = homes(saved(tmp_path))
    path = files.parts_of(home)[0].path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=rf"{path.name} is not a file"):
        pipe().resume(tmp_path)


@pytest.mark.parametrize("to", ["elsewhere", "itself", "nowhere"])
def test_a_folder_that_leads_elsewhere_is_refused(to: str, tmp_path: Path) -> None:
    """Cut-off writes are deleted in the folders of checkpoints."""
    saved(tmp_path / "saved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.tmp").write_text("")
    link = tmp_path / "saved" / "batch-00000000-ffff"
    target = {"elsewhere": str(tmp_path / to), "itself": link.name, "nowhere": to}[to]
    link.symlink_to(target)
    with pytest.raises(ValueError, match=r"batch-00000000-ffff is a link .*: delete it"):
        pipe().resume(tmp_path / "saved")
    link.unlink()
    link.write_text("no folder")
    again = pipe()
    again.resume(tmp_path / "saved")
    again.train(data(3), checkpoints=tmp_path / "saved")
    assert (tmp_path / "elsewhere" / "mine.tmp").exists()


def test_a_lock_does_not_write_through_a_link(tmp_path: Path) -> None:
    (precious := tmp_path / "precious").write_text("mine")
    (folder := tmp_path / "saved").mkdir()
    (folder / ".lock").symlink_to(precious)
    with pytest.raises(OSError, match=r"saved/\.lock"):
        pipe().train(data(2), checkpoints=folder)
    assert precious.read_text() == "mine"
    (folder / ".lock").unlink()
    os.mkfifo(folder / ".lock")
    with pytest.raises(ValueError, match=r"saved/\.lock is not a file"):
        pipe().train(data(2), checkpoints=folder)
