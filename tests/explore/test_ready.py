"""An explorer is there at once: what takes seconds to load is loaded when it is used."""

import subprocess
import sys

EXPLORERS = "memory", "planner", "search", "timeline"
BY_HAND = "own_schedule", "puzzle_board"
CODE = f"""
import sys
from pipekit.explore import {", ".join(EXPLORERS)}
from experiments.staleness import explorer
from pipekit.explore.by_hand import {", ".join(BY_HAND)}
from pipekit.explore.browser.picture import explained, picture
for shown in timeline.see().timelines:
    picture(shown.trace), explained(shown.trace)
print(*({{"torch", "matplotlib", "networkx", "scipy"}} & sys.modules.keys()))
"""


def test_neither_torch_nor_matplotlib_is_loaded_before_a_timelines_first_picture() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
