"""``pipekit demo``, as one who has just installed it runs it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.long
def test_two_methods_learn_and_are_drawn(printed: Callable[[str], str], tmp_path: Path) -> None:
    text = printed(f"demo --output {tmp_path}")
    accuracies = [float(each) for each in re.findall(r"accuracy ([\d.]+)%", text)]
    assert len(accuracies) == 2
    assert min(accuracies) > 80
    assert text.index("Model parallelism has") < text.index("kept by each worker: 1 and 1")
    assert text.index("PipeDream has one") < text.index("kept by each worker: 2 and 1")
    (shares,) = re.findall(r"for (\d+)% of the time without a pipeline and for (\d+)%", text)
    alone, pipelined = map(int, shares)
    assert alone > pipelined
    assert "50% and 0%" in text  # two workers that take turns; a pipeline that is never empty
    assert (tmp_path / "timelines.svg").exists()
