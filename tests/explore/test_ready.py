"""All explorers: each is there at once, and has a control for each argument."""

import subprocess
import sys
from typing import Any

import pytest

from pipekit.explore import choose_parallelism, memory, planner, search, timeline, why_slow
from pipekit.explore.by_hand import own_schedule

EXPLORERS = "choose_parallelism", "memory", "planner", "search", "timeline", "why_slow"
CODE = f"""
import sys
from pipekit.explore import {", ".join(EXPLORERS)}
from experiments.staleness import explorer
from pipekit.explore.by_hand import own_schedule
from pipekit.explore.puzzles.page import html
from pipekit.explore.browser.picture import explained, picture
for shown in timeline.see().timelines:
    picture(shown.trace), explained(shown.trace)
html()
print(*({{"torch", "matplotlib", "networkx", "scipy"}} & sys.modules.keys()))
"""


def test_neither_torch_nor_matplotlib_is_loaded_before_a_timelines_first_picture() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize(
    "explorer",
    [choose_parallelism, memory, planner, search, timeline, why_slow, own_schedule],
)
def test_every_argument_has_a_control(explorer: Any) -> None:
    assert {*explorer.controls()} == {*explorer.see.__annotations__} - {"return"}
