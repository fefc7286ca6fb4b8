"""The rows of Table 1, as the ledger prints them."""

import pytest

from experiments.pipedream.table1 import rows as table1
from experiments.pipedream.table1.rows import Setting


def test_configurations_are_replicas_joined_by_hyphens() -> None:
    assert table1.replicas_of("9-5-1-1") == [9, 5, 1, 1]
    assert table1.replicas_of("8") == [8]


@pytest.mark.parametrize("text", ["", "2-", "0-1", "2 - 1", "2--1"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write replicas like"):
        table1.replicas_of(text)


def test_a_clusters_bandwidth_is_fitted_on_rows_of_its_own() -> None:
    assert len(table1.TABLE1) == 7
    for cluster, rows in table1.CALIBRATED_ON.items():
        assert {row.cluster for row in rows} == {cluster}
    cells = {cell.name for cell in table1.FITTED}
    assert cells == {"vgg16-4A", "vgg16-8B", "inception-8B", "s2vt-4A"}
    assert set(table1.TABLE1) >= table1.FITTED


def test_the_table_is_read_from_the_ledger() -> None:
    row = Setting("inception-v3", 8, "B")
    assert row.name == "inception-8B"
    assert table1.printed(row, "config") == "7-1"
    assert table1.printed(row, "bsp-speedup") == "4.74"
    assert table1.printed_number(row, "bsp-speedup") == 4.74
    assert table1.printed_number(table1.THROUGHPUT[0], "bsp-speedup") is None
