import time

import pytest

from experiments.pipedream_2bw.planner import profiling_modes


def test_a_step_is_predicted_from_an_earlier_one_and_from_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole, one block's model, a block, whole again: 9 s each to warm up, then three rounds."""
    monkeypatch.setattr(profiling_modes, "ERRORS", 2)  # of two rounds, and of one
    rounds = [5.0, 2.0, 1.5, 4.0], [6.0, 3.0, 1.0, 5.0], [6.0, 2.0, 1.0, 6.0]
    took = [9.0] * 4 + [seconds for each in rounds for seconds in each]
    now = iter([end for seconds in took for end in (0.0, seconds)])
    monkeypatch.setattr(time, "thread_time", lambda: next(now))
    found = profiling_modes.prediction_errors(
        layers=3, hidden=8, heads=2, vocabulary=16, tokens=4, rows=2, repeats=3
    )
    assert not list(now)
    assert found.whole == pytest.approx([5 / 4 - 1, 0])
    assert found.block == pytest.approx([abs((2 + 2 * 1) / 4 - 1), abs((2 + 2 * 1) / 6 - 1)])
    assert found.profiling_s == 17
