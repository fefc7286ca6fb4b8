"""Table 3 as rows and findings, from made-up rows."""

import pytest
import torch

from experiments.torchgpipe.memory import small, table3, unets
from experiments.torchgpipe.memory.unets import Row
from experiments.torchgpipe.settings import TABLE3

ROWS = [
    Row(cell.name, unets.size_of(cell.network), n, 2.0 * n, 1.0 * n, 0.5, 2.0 * n, True)
    for n, cell in enumerate(TABLE3, start=1)
]


def test_rows_stand_beside_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unets, "most_convolutions", lambda cell: 7)
    frame = table3.frame(ROWS)
    assert frame["GiB (paper)"].tolist() == [table3.paper_gib(row) for row in ROWS]
    assert frame["simulated / paper"][1] == 4.0 / table3.paper_gib(ROWS[1])
    _, drawn = table3.figure(frame)
    assert len(drawn) == 3 * len(ROWS)


def test_each_row_is_compared_with_the_one_before() -> None:
    found = {each.claim: each for each in table3.findings(ROWS, "a.svg")}
    assert found["torchgpipe-table3-pipeline-2-memory"].value == [6.0, 3.0, 2.0]
    assert found["torchgpipe-table3-growth"].value == 5
    assert found["torchgpipe-unet-structure"].value is True
    assert "Beside its weights" in found["torchgpipe-table3-pipeline-1-memory"].note


def test_the_full_batch_is_measured_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = table3.naive_finding(ROWS[0], 0.01, 0, "a.svg")
    assert (simulated.value, simulated.label) == ([2.0, 2.0], "simulated")

    def beside(*_: object, **__: object) -> dict[str, list[float]]:
        return {"measured": [3.0 * 2**30], "simulated": [4.0 * 2**30]}

    monkeypatch.setattr(small, "beside_simulated", beside)
    row = Row("naive-1", (1, 2), 1, 2.0, 1.0, 0.5, 2.0, True)
    measured = table3.naive_finding(row, 0.01, TABLE3[0].batch, "a.svg")
    assert (measured.value, measured.label) == ([3.0, 3.0], "measured")


def test_peaks_of_small_unets_are_predicted() -> None:
    torch.manual_seed(0)
    found = small.beside_simulated((1, 4), 8, 64, small.TRIED)
    assert len(found) == 1 + 1 + 2 + 2 + 4
    assert 0 < small.largest_error(found) < 0.1
