"""``pipekit published``: the sets, where to fetch one, and how far predictions are off."""

import hashlib
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.conftest import Printed

MODULE = import_module("pipekit.cli.published")


@pytest.fixture(autouse=True)
def no_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIPEKIT_MEASURED", raising=False)


def test_the_sets_are_listed_with_their_sources(printed: Printed) -> None:
    lines = printed("published list").splitlines()
    assert len(lines) == 10
    words = " ".join(lines[0].split())
    assert words == "vtrain_single_node github.com/VIA-Research/vTrain @ f8dda8473a48 (MIT)"


def test_a_set_that_is_not_here_is_to_be_fetched(printed: Printed) -> None:
    assert printed("published get vtrain_multi_node").startswith(
        "fetch data/ground_truth_multi.csv of github.com/VIA-Research/vTrain @ f8dda8473a48 (MIT), "
        "and keep its table as FOLDER/vtrain/multi_node.csv"
    )


def test_a_file_is_known_by_its_bytes(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vtrain").mkdir()
    path = tmp_path / "vtrain" / "multi_node.csv"
    path.write_text("row_id\n")
    assert "another file than our errors" in printed(
        f"published get vtrain_multi_node --folder {tmp_path}"
    )
    (row,) = [row for row in MODULE._rows(MODULE.SETS) if row["set"] == "vtrain_multi_node"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    known = tmp_path / "sets.csv"
    known.write_text(",".join(row) + "\n" + ",".join({**row, "sha256": digest}.values()) + "\n")
    monkeypatch.setattr(MODULE, "SETS", known)
    monkeypatch.setenv("PIPEKIT_MEASURED", str(tmp_path))
    assert printed("published get vtrain_multi_node").endswith(
        "that our errors were computed from\n"
    )


def test_the_table_has_a_line_a_set(printed: Printed) -> None:
    head, *sets, note = printed("published table").splitlines()
    assert head.split() == ["set", "rows", "ours", "floor", "simulator", "coverage"]
    assert {"vtrain_single_node", "megatron_bridge"} <= {line.split()[0] for line in sets}
    assert "nothing was fitted on" in note


def test_wrong_words_are_refused(refused: Printed) -> None:
    assert "did you mean 'table'" in refused("published tabel")
    assert "did you mean 'sailor'" in refused("published get SAILER")
    assert "name a set after get" in refused("published get")
