"""``pipekit schedule``: print, draw and check methods."""

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

import pipekit as pk
from pipekit.choices import meant
from pipekit.cli.common.options import TABLE, File, require_suffix, save, save_text, save_timelines
from pipekit.names import TABLES
from pipekit.references import load, require_module


def schedule(
    methods: Annotated[list[str], typer.Argument(metavar="METHOD...", help=TABLE)],
    stages: int = 4,
    replicas: str | None = None,
    microbatches: int = 4,
    batches: int = 2,
    output: File = None,
    versions: bool = False,
    moving: bool = False,
) -> None:
    """Print methods as the papers draw them, or draw them, with the facts of each.

    Each is proved executable first; the refusal of a file names the tasks at fault. A bubble is the
    idle share of the makespan, of workers' spans (first task to last), or of their steady time.

    \b
    [b]Examples[/b]
      pipekit schedule gpipe --stages 4 --microbatches 8
      pipekit schedule pipedream --replicas 2-1-1 --output pipedream.txt
      pipekit schedule pipedream.txt
      pipekit schedule gpipe flush 2bw --versions --output timelines.svg
      pipekit schedule gpipe pipedream --moving --output moving.svg

    Args:
        microbatches: Number in each batch; methods that update after every minibatch have as many
            whole ones.
        batches: Number of batches, with an update each.
        output: Draw into a .svg (with the .csv of its events) or .html; or write the table to a
            .csv, or the picture to a .txt, that this command reads back.
        versions: Write weight versions into drawn bars.
        moving: Draw a .svg that plays: passes grow as they run.
    """
    require_suffix(output, (".svg", ".html", ".csv", ".txt"))
    if output is not None and output.suffix in (".csv", ".txt") and len(methods) > 1:
        raise ValueError(f"a {output.suffix} holds one schedule: name one method, not {methods}")
    if moving and (output is None or output.suffix != ".svg"):
        raise ValueError("--moving needs a picture to draw: --output NAME.svg")
    from pipekit.schedules.methods.by_name import parse_replicas

    split = stages if replicas is None else parse_replicas(replicas)
    shown = [chosen_schedule(name, split, microbatches, batches) for name in methods]
    facts = [_facts(schedule) for schedule in shown]  # checks them all, before anything is written
    if output is None:
        width = get_terminal_size().columns if sys.stdout.isatty() else None
        pictures = (pk.schedules.draw(schedule, width=width) for schedule in shown)
        typer.echo("\n\n".join(map("{}\n{}".format, pictures, facts)))
        return
    if output.suffix == ".csv":
        save(output, shown[0].to_csv)
    elif moving:
        save_text(output, pk.plots.moving(*shown))
    elif output.suffix == ".txt":
        save_text(output, f"{shown[0]}\n")
    else:
        save_timelines(list(map(pk.Trace.from_schedule, shown)), output, versions=versions)
    typer.echo("\n".join(facts))


def chosen_schedule(
    name: str, stages: int | Sequence[int], microbatches: int, batches: int
) -> "pk.Schedule":
    """Return the finite schedule of a method by its name, of a file, or of a user's function.

    ``stages`` is their number, or the number of workers of each.
    """
    from pipekit.schedules.methods import by_name

    if name in by_name.TABLES:
        return by_name.batches_of(name, stages, microbatches, batches)
    own = own_schedule(name, stages, microbatches)
    return own.take(batches) if own.is_endless else own


def require_method(name: str) -> None:
    """Refuse what no method, file or function of a user is called, before torch is loaded."""
    if ":" in name:
        require_module(name)
    elif name not in TABLES and not Path(name).is_file():
        raise ValueError(
            f"{name!r} is neither a file, nor a package.module:function, nor one of the methods "
            f"{TABLES}{meant(name, TABLES)}"
        )


def own_schedule(name: str, stages: int | Sequence[int], microbatches: int) -> "pk.Schedule":
    """Return the schedule in a file, or that of a user's ``package.module:function``."""
    from pipekit.reading import read_text

    if ":" in name:
        if not isinstance(stages, int) and set(stages) != {1}:
            raise ValueError(f"{name} is asked for stages of one worker each: leave out replicas")
        count = stages if isinstance(stages, int) else len(stages)
        found = load(name)(count, microbatches)
        if not isinstance(found, pk.Schedule):
            raise TypeError(f"{name} must return a pipekit Schedule, not {type(found).__name__}")
        return found
    require_method(name)
    file = Path(name)
    try:
        is_csv = file.suffix == ".csv"
        return pk.schedules.read_csv(file) if is_csv else pk.schedules.parse(read_text(file))
    except pk.ScheduleError as error:
        raise pk.ScheduleError(f"{file}: {error}") from None


def _facts(schedule: "pk.Schedule") -> str:
    report = pk.schedules.check(schedule)
    trace = pk.Trace.from_schedule(schedule)
    bubbles = pk.traces.describe_bubbles(trace.bubbles())
    counted = "microbatches" if schedule.chunks == 1 else "chunks"
    return (
        f"{schedule.title}: {bubbles}, {trace.makespan_s:g} slots; "
        f"at most, a worker: weight slots {' '.join(map(str, report.peak_versions))}, "
        f"{counted} in flight {' '.join(map(str, report.peak_in_flight))} (exact)"
    )
