"""Recomputation: which, and when."""

import pandas as pd

from experiments.torchgpipe.speed import recomputation
from pipekit.clusters import flat
from pipekit.traces import COLUMNS, RECOMPUTE, Trace
from tests.emulation.own_time import own_time


def test_counts_are_the_papers() -> None:
    assert recomputation.counts([1, 3], [2], "never") == {(1, 2): 0, (3, 2): 0}
    assert recomputation.counts([1, 3], [2], "except_last") == {(1, 2): 0, (3, 2): 4}
    assert recomputation.counts([1, 3], [2], "always") == {(1, 2): 2, (3, 2): 6}


def made(*events: tuple[str, int, float, float]) -> Trace:
    rows = [(stage, stage, op, 0, 0, start, end, 0) for op, stage, start, end in events]
    return Trace(pd.DataFrame(rows, columns=COLUMNS), "exact", "by hand", workers=2)


def test_a_recomputation_must_begin_before_its_gradient_arrives() -> None:
    backward = "BACKWARD", 1, 2.0, 4.0
    assert recomputation.overlaps(made(backward, (RECOMPUTE, 0, 3.9, 4.9)), copy_s=0)
    assert not recomputation.overlaps(made(backward, (RECOMPUTE, 0, 4.1, 5.1)), copy_s=0)
    assert recomputation.overlaps(made(backward, (RECOMPUTE, 0, 4.1, 5.1)), copy_s=0.5)
    # The last stage waits for nobody.
    assert not recomputation.overlaps(made(backward, (RECOMPUTE, 1, 1.0, 2.0)), copy_s=0)


def test_the_engine_recomputes_while_it_waits() -> None:
    with own_time():
        trace = recomputation.emulated(2, 3, flat(2, 1e8), 1e5)
    assert recomputation.recomputations(trace) == 4
    assert recomputation.overlaps(trace, copy_s=1e-3)


def test_rules_are_findings() -> None:
    with own_time():
        trace = recomputation.emulated(4, 4, flat(4, 1e9), 1e5)
    rules = recomputation.findings(trace, 1e-4, "a.svg", most=2)
    assert [each.value for each in rules] == [True, 0, True, True]
