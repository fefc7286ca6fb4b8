"""Table 1's findings and its memory, on the simulated rows of the paper's own setting."""

import pytest
import torch

from experiments.torchgpipe.ablation import memory as table1_memory
from experiments.torchgpipe.ablation import table1
from experiments.torchgpipe.ablation.table1 import NAMES, Table1
from experiments.torchgpipe.settings import TABLE1
from experiments.torchgpipe.speed.rates import profile_of
from pipekit.clusters.papers import torchgpipe_p40


@pytest.fixture(scope="module")
def table() -> Table1:
    profile = profile_of(TABLE1.network, TABLE1.rows)
    return Table1(profile, torchgpipe_p40(TABLE1.stages), {"dep-streams": 1.0})


def test_speedups_are_over_the_baseline_and_each_panel_is_looked_at(table: Table1) -> None:
    speedup = table.frame["speedup (simulated)"]
    assert speedup[0] == 1
    baseline, last = (table.traces[name].makespan_s for name in (NAMES[0], NAMES[-1]))
    assert speedup.iloc[-1] == baseline / last
    assert table.frame["s a batch (emulated)"].notna().tolist() == [False, False, True, False]
    found = {each.claim: each.value for each in table1.findings(table, "a.svg", "b.svg")}
    assert found["torchgpipe-table1-every-component-helps"] == speedup.tolist()
    assert found["torchgpipe-table1-dep-speedup"] == speedup[:2].tolist()
    assert found["torchgpipe-fig7-patterns"] == sum(table.seen)
    _, events = table1.figure7(table)
    assert set(events["panel"]) == set("abcd")


def test_whatever_is_missing_makes_a_batch_longer(table: Table1) -> None:
    slowdowns = table.one_less()
    assert set(slowdowns) == {"order", "streams", "portals"}
    assert min(slowdowns.values()) >= 1
    least, shares = table1.less_findings(slowdowns)
    assert least.value == min(slowdowns.values())
    assert shares.value[0] == 0 < shares.value[1]


def test_memory_is_told_by_row(table: Table1) -> None:
    live = {"baseline": 9.0, "dep": 3.0, "dep-streams": 3.0, "dep-streams-portals": 2.0}
    memory = table1_memory.frame(table, live)
    assert (memory[table1_memory.LIVE][0] > memory[table1_memory.LIVE][1:]).all()
    arriving = memory[table1_memory.ARRIVING]
    assert arriving[0] == arriving[2] > arriving[3] > 0
    unet = table1_memory.SmallUNet(2, 64, 1)
    *each, pattern = table1_memory.findings(memory, unet, "a.svg")
    assert [found.value for found in each] == [list(live.values())] * 4
    assert pattern.value == [6.0, 0.0, 1.0]
    (pools,) = each[0].causes
    assert pools.value == memory[table1_memory.RESERVED].tolist()
    assert pools.value[2] > pools.value[1], "each microbatch's gradients in a pool of their own"
    assert "3.0 times as much" in table1_memory.figure(memory).layout.title.text


def test_a_pool_for_each_stream_keeps_every_arriving_gradient() -> None:
    """10 bytes are live; 8 microbatches get 1 byte each, one after the other."""
    assert table1_memory.reserved_bytes(10, 8, streams=False, microbatches=8) == 11
    assert table1_memory.reserved_bytes(10, 8, streams=True, microbatches=8) == 18


@pytest.mark.slow
def test_a_small_unet_holds_least_with_order_and_portals() -> None:
    torch.manual_seed(0)
    live = table1_memory.SmallUNet(2, 64, 1).live_mb()
    assert live["baseline"] > live["dep"] == live["dep-streams"] > live["dep-streams-portals"]
