"""Recomputation: which, when, and its bytes, on networks small enough to count by hand."""

from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn

from pipekit.clusters import flat
from pipekit.papers.torchgpipe import recompute
from pipekit.papers.torchgpipe.recompute import Kept
from pipekit.plans import Recompute
from pipekit.traces import COLUMNS, RECOMPUTE, Trace


def test_counts_are_the_papers() -> None:
    assert recompute.counts([1, 3], [2], "never") == {(1, 2): 0, (3, 2): 0}
    assert recompute.counts([1, 3], [2], "except_last") == {(1, 2): 0, (3, 2): 4}
    assert recompute.counts([1, 3], [2], "always") == {(1, 2): 2, (3, 2): 6}


def made(*events: tuple[str, int, float, float]) -> Trace:
    rows = [(stage, stage, op, 0, 0, start, end, 0) for op, stage, start, end in events]
    return Trace(pd.DataFrame(rows, columns=COLUMNS), "exact", "by hand", workers=2)


def test_a_recomputation_must_begin_before_its_gradient_arrives() -> None:
    backward = "BACKWARD", 1, 2.0, 4.0
    assert recompute.overlaps(made(backward, (RECOMPUTE, 0, 3.9, 4.9)), copy_s=0)
    assert not recompute.overlaps(made(backward, (RECOMPUTE, 0, 4.1, 5.1)), copy_s=0)
    assert recompute.overlaps(made(backward, (RECOMPUTE, 0, 4.1, 5.1)), copy_s=0.5)
    # The last stage waits for nobody.
    assert not recompute.overlaps(made(backward, (RECOMPUTE, 1, 1.0, 2.0)), copy_s=0)


def test_the_engine_recomputes_while_it_waits() -> None:
    trace = recompute.emulated(2, 3, flat(2, 1e8), 1e5)
    assert recompute.recomputations(trace) == 4
    assert recompute.overlaps(trace, copy_s=1e-3)


def test_bytes_fall_by_the_number_of_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(16, 16), nn.Tanh()] * 3
    stage = recompute.OneStage(
        nn.Sequential(*layers),
        torch.rand(32, 16),
        torch.rand(32, 16),
        4,
        loss=nn.MSELoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )
    held = stage.held()
    kept = {mode: each.intermediate_bytes for mode, each in held.items()}
    # Three outputs of a tanh, [32, 16] floats each, and the loss of each microbatch.
    assert kept["never"] == 3 * 32 * 16 * 4 + 4 * 4
    assert kept["never"] == 4 * kept["except_last"] == 4 * kept["always"]
    assert held["always"].peak_bytes == held["except_last"].peak_bytes
    assert {each.bytes_per_parameter for each in held.values()} == {8}
    found = iter([5.0, 4.0, 3.0, 2.0, 9.0, 8.0])  # of three modes in turn, twice
    monkeypatch.setattr(recompute, "fastest_interval", lambda _: next(found))
    assert stage.seconds(rounds=2) == {"never": 2.0, "except_last": 4.0, "always": 3.0}


def test_rules_and_effects_are_findings() -> None:
    trace = recompute.emulated(4, 4, flat(4, 1e9), 1e5)
    rules = recompute.rule_findings(trace, 1e-4, "a.svg", most=2)
    assert [each.value for each in rules] == [True, 0, True, True]
    less = Kept(5, 2.0, 8.0)
    held: recompute.Held = {2: {"never": Kept(9, 8.0, 8.0), "except_last": less, "always": less}}
    seconds: dict[Recompute, float] = {"never": 1.0, "except_last": 2.0, "always": 3.0}
    table = recompute.effects(held, seconds)
    assert table["seconds"].tolist() == [1.0, 2.0, 3.0]
    factor, no_gain, size = recompute.effect_findings(held, seconds, "a.svg")
    assert (factor.value, no_gain.value, size.value) == (2.0, [1.0, 1.5], 8.0)
