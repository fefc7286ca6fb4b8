import json
import platform
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from pipekit.host import provenance as module
from pipekit.host.provenance import LABELS, provenance, write


@pytest.mark.parametrize("label", ["measured", "emulated", "simulated", "exact", "paper"])
def test_record_says_label_software_hardware_and_seed(label: str) -> None:
    record = provenance(label, seed=7, microbatches=4)
    assert record["label"] == label
    assert record["seed"] == 7
    assert record["microbatches"] == 4
    assert record["python"] == platform.python_version()
    assert record["torch"] == str(torch.__version__)
    assert len(record["gpus"]) == torch.cuda.device_count()
    assert record["cores"] >= 1
    assert record["memory_gb"] > 0.1
    assert record["cpu"]
    age = datetime.now(UTC) - datetime.fromisoformat(record["utc"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)


def test_there_are_no_other_labels() -> None:
    assert set(LABELS) == {"measured", "emulated", "simulated", "exact", "paper"}
    with pytest.raises(ValueError, match=r"label must be one of measured, .*, not 'guessed'"):
        provenance("guessed")


def test_written_file_reads_back(tmp_path: Path) -> None:
    record = provenance("exact", seed=1, nested={"values": [1, 2.5, None]})
    write(tmp_path / "new" / "folder" / "record.json", record)
    assert json.loads((tmp_path / "new" / "folder" / "record.json").read_text()) == record


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tracked(tmp_path: Path) -> Path:
    """A file committed to a new repository."""
    file = tmp_path / "tracked.py"
    file.write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--no-verify", "-m", "first")
    return file


def test_commit_is_that_of_the_checkout(tracked: Path) -> None:
    head = git(tracked.parent, "rev-parse", "HEAD")
    git(tracked.parent, "tag", "-a", "-m", "release", "v1")  # a tag does not hide the commit
    assert module._commit_of(tracked) == head


def test_changed_files_make_the_commit_dirty(tracked: Path) -> None:
    head = git(tracked.parent, "rev-parse", "HEAD")
    tracked.write_text("2")
    assert module._commit_of(tracked) == f"{head}-dirty"


def test_a_package_installed_inside_a_strange_checkout_has_no_commit(tracked: Path) -> None:
    installed = tracked.parent / ".venv" / "pipekit.py"
    installed.parent.mkdir()
    installed.write_text("1")
    assert module._commit_of(installed) is None
