"""All explorers: each is there at once, and has a control for each argument."""

import subprocess
import sys
from inspect import signature
from typing import Any

import pytest
from ipywidgets import ValueWidget

from pipekit.explore import choose_parallelism, own_schedule, planner, search, timeline, why_slow
from pipekit.explore.page.controls import declared

EXPLORERS = "choose_parallelism", "planner", "search", "timeline", "why_slow"
CODE = f"""
import sys
from pipekit.explore import {", ".join(EXPLORERS)}
from experiments.staleness import explorer
from pipekit.explore import own_schedule
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
    "explorer", [choose_parallelism, planner, search, timeline, why_slow, own_schedule]
)
def test_every_argument_has_a_control(explorer: Any) -> None:
    controls = {name: make() for name, make in declared(explorer.see).items()}
    assert all(isinstance(each, ValueWidget) for each in controls.values())
    assert [*controls] == [*signature(explorer.see).parameters]
