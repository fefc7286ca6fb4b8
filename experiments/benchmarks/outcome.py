"""Where a benchmark's tables go: to the terminal, and as files with their provenance."""

from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from pipekit.host.provenance import write


def wide_console() -> Console:
    """Return a console that is wide enough for the tables in a file, too."""
    console = Console()
    if not console.is_terminal:
        console.width = 150  # a file has no width of its own
    return console


def conclude(
    console: Console, name: str, table: pd.DataFrame, record: dict[str, Any], output: Path | None
) -> None:
    """Say where the numbers were made; write ``<name>.csv`` and ``<name>.json`` to a folder.

    Args:
        console: where to say it.
        name: of the files.
        table: the numbers.
        record: their provenance.
        output: the folder, or None to write nothing.
    """
    console.print(
        f"{record['cpu']}, {record['cores']} cores, load {record['load_average_at_start']:.1f} at "
        f"the start; Python {record['python']}, torch {record['torch']}, commit {record['commit']}"
    )
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    numbers, origin = output / f"{name}.csv", output / f"{name}.json"
    table.to_csv(numbers, index=False, float_format="%.6g")
    write(origin, record)
    console.print(f"written: {numbers} and {origin}")
