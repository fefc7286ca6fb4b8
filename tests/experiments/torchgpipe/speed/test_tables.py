"""Tables 2 and 4 as rows and findings, from made-up rates."""

import pytest

from experiments.torchgpipe.settings import TABLE2, TABLE4
from experiments.torchgpipe.speed import tables
from experiments.torchgpipe.speed.rates import Throughput

RATES = {
    cell: Throughput(simulated=2.0 * n, emulated=1.0 * n, blocks=3.0 * n, peak_bytes=2**30)
    for n, cell in enumerate(tables.CELLS, start=1)
}


def test_speedups_are_over_each_tables_own_baseline() -> None:
    table2, table4 = tables.table2(RATES), tables.table4(RATES)
    assert table2["emulated"].tolist() == list(range(1, 1 + len(TABLE2)))
    assert table4["emulated"].tolist() == [n / 10 for n in range(10, 10 + len(TABLE4))]
    assert table2["paper"][0] == table4["paper"][0] == 1
    assert table4.set_index("cell")["paper"]["pipeline-8"] == 3.105
    _, drawn = tables.figure(table2, table4)
    assert len(drawn) == len(TABLE2) + len(TABLE4) - 2


def test_every_cell_but_the_baselines_is_a_finding() -> None:
    found = tables.findings2(tables.table2(RATES), "a.svg", {"m1-n8": 0.5})
    tried = {each.claim: each.causes[0].value for each in found if each.causes}
    assert tried == {"torchgpipe-table2-ours-m1-n8": 0.5}
    values = {each.claim: each.value for each in found}
    assert len(values) == 1 + len(TABLE2) - 1 + 1
    assert values["torchgpipe-table2-baseline"] == 1
    assert values["torchgpipe-table2-ours-m1-n8"] == 3
    assert values["torchgpipe-table2-trend"] is True
    assert "of m = 4 to m = 32" in next(e.note for e in found if e.claim.endswith("m4-n4"))
    pairs = [each.value for each in tables.findings4(tables.table4(RATES), "a.svg")]
    assert pairs[0] == [11 / 10, 12 / 10]


def test_a_slots_ratio_is_one_if_all_slots_are_alike() -> None:
    table = tables.table2(RATES)
    table["paper"] = [2 * c.microbatches / (sum(key) - 1) for key, c in TABLE2.items()]
    assert tables.slots(table)["ratio (paper)"].tolist() == pytest.approx([1, 1, 1])


def test_the_setting_is_the_papers() -> None:
    values = [each.value for each in tables.setting_findings(seed=0)]
    assert values[:2] == [True, True]
    assert values[4] is True
