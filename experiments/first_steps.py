"""Walk docs/start.md in a fresh clone, as a newcomer would, and say what each step takes.

    python -m experiments.first_steps --output results/runs/first_steps

CPU seconds of all processes that a step starts; downloads are not in them.  ``steps.csv`` has a row
a heading of the page that has something to run.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from pipekit.host.provenance import provenance, write

REPOSITORY = Path(__file__).parents[1]
PAGE = "docs/start.md"
_STEP = re.compile(r"^## \d+\. (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^    (.+)$|^```sh\n((?:.*\n)+?)```$", re.MULTILINE)
_PROGRAM = re.compile(r"^```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)


def steps(page: str) -> dict[str, str]:
    """Return what there is to run under each numbered heading, as lines for a shell."""
    found = {}
    for heading, text in _STEP.findall(page):
        programs = [f"python - <<'EOF'\n{each}EOF" for each in _PROGRAM.findall(text)]
        prose = _PROGRAM.sub("", text)
        found[heading] = "\n".join([*map("".join, _COMMAND.findall(prose)), *programs])
    return found


def main(
    output: Annotated[Path, typer.Option(help="The folder for the table and its origin.")],
) -> None:
    """Clone, install, and run each step in turn; stop at the first that fails."""
    rows, machine = [], provenance("measured", page=PAGE)  # now: the checkout may change meanwhile
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "pipekit"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        commands = {"install": "make .venv/.installed"} | steps((clone / PAGE).read_text())
        for step, command in commands.items():
            print(f"== {step}", flush=True)
            rows.append({"step": step, "cpu_s": round(cpu_seconds(command, clone), 1)})
    write(output / "provenance.json", machine)
    kept = {key: machine[key] for key in ("utc", "label", "cores", "cpu", "commit")}
    table = pd.DataFrame(rows).assign(**kept)
    table.to_csv(output / "steps.csv", index=False)
    print(table.iloc[:, :2].to_string(index=False))


def cpu_seconds(command: str, folder: Path) -> float:
    """Run lines in a shell in a folder, its environment active; return their CPU seconds."""
    path = f"{folder / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    # PYTHONPATH: whatever checkout the environment was installed from
    settings = os.environ | {"PATH": path, "PYTHONPATH": str(folder)}
    before = os.times()
    subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=settings, stdout=sys.stderr, check=True
    )
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])  # of the children: user and system


if __name__ == "__main__":
    typer.run(main)
