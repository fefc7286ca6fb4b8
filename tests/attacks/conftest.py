"""The options of attacks at random, and what is shown and kept of their outcomes.

    python -m pytest -m scripts tests/attacks --tries 50    # make attack
    python -m pytest -m scripts tests/attacks -k kill --tries 9 --seed 7 --output results/runs/faults

A seed repeats the attacks; the machine decides at which moment of a training they come.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.benchmarks.harness import conclude, measured

RECORD = pytest.StashKey[dict[str, Any]]()
COUNTED_BY = {"kills": ("end", "resumed over"), "interrupts": ("way", "outcome")}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attacks")
    group.addoption(
        "--tries", type=int, default=2, help="trainings to kill, interrupts in each way"
    )
    group.addoption("--seed", type=int, default=0, help="of the random draws")
    group.addoption("--output", type=Path, help="folder for a table of each kind and provenance")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("output", None):
        config.stash[RECORD] = measured(parameters={"seeds": [config.getoption("seed")]})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the outcomes, also of a session that Ctrl-C has ended, and write the tables."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    config = terminalreporter.config
    for name, columns in COUNTED_BY.items():
        rows = [row for r in reports for kind, row in r.user_properties if kind == name]
        if rows:
            table = pd.DataFrame(rows)
            terminalreporter.section(f"{len(table)} {name} (measured)")
            counts = pd.crosstab(*(table[each] for each in columns), margins=True)
            terminalreporter.write_line(counts.to_string())
            if RECORD in config.stash:
                conclude(name, table, config.stash[RECORD], config.getoption("output"))
