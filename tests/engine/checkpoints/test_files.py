"""Checkpoints as files: atomic, complete when all parts are there, sound while their sums hold."""

from pathlib import Path

import pytest
import torch

from pipekit.engine.checkpoints import files as checkpoints
from pipekit.engine.checkpoints.files import (
    is_complete,
    load,
    newest,
    parts_of,
    require_empty,
    write,
)
from pipekit.engine.config import CheckpointConfig

A, B = "aaaa0000", "bbbb1111"  # attempts


def save(folder: Path, batches: int, *workers: int, of: int = 2, attempt: str = A) -> Path:
    for worker in workers:
        content = {"stage": worker, "worker": worker, "weights": {"0.weight": torch.arange(5.0)}}
        write(config(folder, attempt, of), batches, content)
    return folder / f"batch-{batches:08d}-{attempt}"


def config(folder: Path, attempt: str = A, parts: int = 1) -> CheckpointConfig:
    return CheckpointConfig(folder, {"batches": 0, "attempt": attempt}, parts, (), 2, ())


def flip(path: Path, at: int = 100) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    home = save(tmp_path, 20, 0, 1)
    assert newest(tmp_path) == home
    first, second = parts_of(home)
    assert (first[:3], second[:3]) == ((0, 0, 2), (1, 1, 2))
    content = load(second)
    assert content["worker"] == 1
    assert torch.equal(content["weights"]["0.weight"], torch.arange(5.0))


def test_a_checkpoint_is_complete_when_all_workers_have_written(tmp_path: Path) -> None:
    save(tmp_path, 10, 0, 1)
    home = save(tmp_path, 20, 1)
    assert not is_complete(home)
    assert newest(tmp_path) == tmp_path / f"batch-00000010-{A}"
    save(tmp_path, 20, 0)
    assert newest(tmp_path) == home


def test_files_of_two_attempts_make_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 20, 0, attempt=A)
    save(tmp_path, 20, 1, attempt=B)
    assert newest(tmp_path) is None


@pytest.mark.parametrize("harm", ["flipped", "cut short", "empty"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_used(
    harm: str, tmp_path: Path
) -> None:
    before = save(tmp_path, 10, 0, 1)
    path = parts_of(save(tmp_path, 20, 0, 1))[1].path
    if harm == "flipped":
        flip(path)
    else:
        path.write_bytes(path.read_bytes()[: 500 if harm == "cut short" else 0])
    with pytest.warns(UserWarning, match=f"{path.name} is damaged.*before it is used"):
        assert newest(tmp_path) == before
    flip(parts_of(before)[0].path)
    with pytest.warns(UserWarning, match="damaged"):
        assert newest(tmp_path) is None


def test_what_an_attempt_had_to_go_back_from_does_not_count_among_the_last_two(
    tmp_path: Path,
) -> None:
    """Else its own, with lower numbers, would be deleted, even while they are being written."""
    for batches in (10, 20, 30):
        home = save(tmp_path, batches, 0, 1, attempt=A)
        if batches > 10:
            flip(parts_of(home)[0].path)
    mine = save(tmp_path, 12, 0, 1, attempt=B)
    assert is_complete(mine)
    save(tmp_path, 22, 0, 1, attempt=B)
    with pytest.warns(UserWarning, match="damaged"):
        assert newest(tmp_path) == tmp_path / f"batch-00000022-{B}"
    save(tmp_path, 32, 0, 1, attempt=B)
    assert [home.name for home in sorted(tmp_path.iterdir())] == [
        f"batch-00000022-{B}",
        f"batch-00000030-{A}",
        f"batch-00000032-{B}",
    ]


def test_what_another_worker_is_deleting_is_not_the_last_finite_checkpoint(tmp_path: Path) -> None:
    home = save(tmp_path, 10, 0)
    write(config(tmp_path, A, 2), 10, {"stage": 1, "worker": 1}, finite=False)
    assert is_complete(home)
    assert not is_complete(home, finite=True)
    for part in parts_of(home)[::-1]:
        part.path.unlink()
        assert not is_complete(home, finite=True)


class Odd:
    """Nothing that could be loaded without running code."""


def test_what_could_not_be_loaded_safely_is_not_written(tmp_path: Path) -> None:
    content = {"stage": 0, "worker": 0, "state": {"lr_scheduler": Odd()}}
    with pytest.raises(TypeError, match=r"lr_scheduler holds .* use tensors and plain values"):
        write(config(tmp_path), 10, content)
    assert not [*tmp_path.rglob("*.pt"), *tmp_path.rglob("*.tmp")]


def test_an_interrupted_write_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(content: object, file: object) -> None:
        file.write(b"some bytes")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    before = save(tmp_path, 10, 0, 1)
    monkeypatch.setattr(torch, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 20, 0, 1)
    assert newest(tmp_path) == before


def test_a_file_of_another_format_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "FORMAT", 0)
    part = parts_of(save(tmp_path, 10, 0))[0]
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"has format 0.*load it with the version that wrote it"):
        load(part)


def test_a_folder_with_checkpoints_of_others(tmp_path: Path) -> None:
    require_empty(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("mine")
    require_empty(tmp_path)
    assert newest(tmp_path) is None
    save(tmp_path, 10, 0)
    with pytest.raises(
        ValueError,
        match=r"call resume\('.*'\) first \(in the shell: --resume\), or name another folder",
    ):
        require_empty(tmp_path)


def test_a_file_is_not_a_folder_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        newest(tmp_path / "file")
