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
    assert text.index("PipeDream-Flush") < text.index("kept by each worker: 1 and 1")
    assert text.index("PipeDream never") < text.index("kept by each worker: 2 and 1")
    assert (tmp_path / "timelines.svg").exists()
