"""``pipekit search``: the shortest schedule found for a profile's costs, links and memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipekit.cli.common.options import (
    Bandwidth,
    ClusterName,
    OptimizerStates,
    PlanFile,
    PlanMicrobatches,
    chosen_links,
    chosen_microbatches,
    chosen_plan,
    print_table,
    require_suffix,
    save,
    save_text,
    save_timelines,
)

if TYPE_CHECKING:
    from pipekit.searching import Searched

SUFFIXES = (".csv", ".json", ".svg", ".html")


def search(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="A file of pipekit profile.")],
    plan: PlanFile = None,
    stages: Annotated[int, typer.Option(min=1, help="Without a plan: number of stages.")] = 4,
    microbatches: PlanMicrobatches = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number that share the stages; by default one each.")
    ] = None,
    cluster: ClusterName = None,
    bandwidth: Bandwidth = None,
    memory: Annotated[
        float | None, typer.Option(help="Bytes of each worker; by default the cluster's.")
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,...", help="The worker of each stage; by default it is searched for, too."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="How long to search.")] = 10.0,
    optimizer_states: OptimizerStates = 0,
    seed: Annotated[int, typer.Option(help="Of the random choices.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Write the schedule to a .csv, that pipekit schedule and simulate read; or what "
            "was found, and the bound, to a .json; or draw the timeline: .svg (and .csv) or .html.",
        ),
    ] = None,
) -> None:
    """Search for the shortest schedule of a batch, and for the worker of each stage.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them; more seconds never make it worse.  Without --cluster or --bandwidth, links cost
    nothing.

    \b
    [b]Examples[/b]
      pipekit search vgg16.json --stages 4 --bandwidth 1.25e9
      pipekit search gpt.json --stages 8 --workers 4 --output found.csv
      pipekit search gpt.json --workers 2 --placement 0,1,1,0 --output found.svg
    """
    import pipekit
    from pipekit.profiling import Profile

    require_suffix(output, SUFFIXES)
    homes = None if placement is None else _workers(placement)
    costs = Profile.load(profile)
    used = chosen_plan(costs, plan, stages)
    links = chosen_links(cluster, workers or len(used.stages), bandwidth)
    found = pipekit.search(
        costs,
        used,
        links,
        memory or (links.device.memory_bytes if links else None),
        microbatches=chosen_microbatches(microbatches, used),
        workers=workers,
        placement=homes,
        seconds=seconds,
        optimizer_states=optimizer_states,
        seed=seed,
    )
    _print(found)
    if output is not None and output.suffix in (".svg", ".html"):
        save_timelines([pipekit.simulate(found.schedule, costs, used, links)], output)
    elif output is not None and output.suffix == ".json":
        save_text(output, found.to_json())
    else:
        save(output, found.schedule.to_csv)


def _workers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--placement is the worker of each stage, as 0,1,1,0, not {text!r}"
        ) from None


def _print(found: "Searched") -> None:
    from pipekit.units import listed

    typer.echo(found)
    rows = []
    for worker, peak in enumerate(found.peak_bytes):
        own = [s for s, homes in enumerate(found.schedule.stage_workers) if worker in homes]
        rows.append([str(worker), listed(own), f"{peak / 1e6:,.1f}"])
    print_table(["worker", "stages", "peak (MB)"], rows)
