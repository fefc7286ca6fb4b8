"""What pipekit says of public traces, beside what was published about them.

    python -m experiments.traces [FOLDER]        # the measurements folder, or $PIPEKIT_MEASURED

A row a trace: the method, the recorded and the replayed step, what the durations of even steps
predict of odd ones, and the slowdowns of the published analysis (ByteDance's, where there is one).
"""

import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import pipekit as pk
from pipekit.measured import Explanation
from pipekit.performance.constants import measurements

TRACES = (
    "bytedance_traces/trace-*.parquet",
    "primus_traces/*/config.json",
    "megatronapp_traces/*.json",
)


def main(
    folder: Annotated[
        Path | None, typer.Argument(help="of the public measurements; by default $PIPEKIT_MEASURED")
    ] = None,
) -> None:
    """Print a table of all traces below a folder."""
    where = folder or measurements() or Path("nowhere")
    found = sorted(path for pattern in TRACES for path in where.glob(pattern))
    if not found:
        raise typer.BadParameter(
            "name the folder of public measurements, or set PIPEKIT_MEASURED to it"
        )
    paths = [path.parent if path.name == "config.json" else path for path in found]
    table = pd.DataFrame([row(path) for path in paths])
    print(table.to_string(index=False, float_format="{:.4g}".format, na_rep="-"))


def row(path: Path) -> dict[str, Any]:
    """Return what is said of one trace, and what is published."""
    found = pk.explain(pk.read_trace(path))
    answers = published(path)
    return {
        "trace": path.stem,
        "method": found.recognition.method,
        "step_s": found.step_s,
        "replayed": f"{found.simulated_s / found.step_s - 1:+.2%}",
        "odd from even": f"{halves(found):+.2%}",
        **{
            name: value
            for key in ("slowdown", "m_s", "m_w")
            for name, value in ((key, found.slowdowns[key]), (f"{key} published", answers.get(key)))
        },
        "first cause": found.causes[0].kind,
    }


def published(path: Path) -> dict[str, float]:
    """Return S, M_S and M_W of the published analysis; nothing where there is none."""
    job = path.stem.partition("-")[2]
    named = {"slowdown": ("result", "blocking_slowdown"), "m_s": ("ms", "Ms"), "m_w": ("mw", "Mw")}
    files = {key: (path.with_name(f"{file}-{job}.json"), n) for key, (file, n) in named.items()}
    return {key: json.loads(f.read_text())[name] for key, (f, name) in files.items() if f.exists()}


def halves(found: Explanation) -> float:
    """Return by what share the replays of even steps differ from the recorded odd ones."""
    what_if = found.what_if
    replayed = what_if.replayed_s(what_if.seconds)[:, 0]
    return float(replayed[::2].mean() / what_if.lasting_s[1::2].mean() - 1)


if __name__ == "__main__":
    typer.run(main)
