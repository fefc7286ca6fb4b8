"""``pipekit search``: the shortest schedule found for a profile's costs, links and memory."""

from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk
from pipekit.cli.common import options
from pipekit.cli.common.options import File
from pipekit.units import listed


def search(
    profile: Path,
    plan: Path | None = None,
    stages: Annotated[int, typer.Option(min=1)] = 4,
    microbatches: int | None = None,
    workers: Annotated[int | None, typer.Option(min=1)] = None,
    cluster: str | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    host_bandwidth: float | None = None,
    placement: Annotated[str | None, typer.Option(metavar="W,W,...")] = None,
    seconds: Annotated[float, typer.Option(min=0)] = 10.0,
    optimizer_states: float = 0,
    seed: int = 0,
    output: File = None,
) -> None:
    """Search for the shortest schedule of a batch, and for the worker of each stage.

    All named methods that fit are simulated first, so that the result is never longer than the best
    of them; more seconds never make it worse. Without --cluster or --bandwidth, links cost nothing.
    With --host-bandwidth, a schedule that does not fit into --memory may offload activations.

    \b
    [b]Examples[/b]
      pipekit search gpt.json --stages 8 --workers 4 --output found.csv
      pipekit search gpt.json --workers 2 --placement 0,1,1,0 --output found.svg

    Args:
        stages: Without a plan: number of stages.
        workers: Number that share the stages; by default one each.
        memory: Bytes of each worker; by default the cluster's.
        placement: The worker of each stage; by default it is searched for, too.
        seconds: How long to search.
        seed: Of the random choices.
        output: Write the schedule to a .csv, that pipekit schedule and simulate read; or draw the
            timeline: .svg (and .csv) or .html.
    """
    options.require_suffix(output, (".csv", ".svg", ".html"))
    try:
        homes = None if placement is None else [int(part) for part in placement.split(",")]
    except ValueError:
        raise ValueError(
            f"--placement is the worker of each stage, as 0,1,1,0, not {placement!r}"
        ) from None
    costs = pk.Profile.load(profile)
    used = options.chosen_plan(costs, plan, stages)
    links = options.chosen_links(cluster, workers or len(used.stages), bandwidth)
    found = pk.search(
        costs,
        used,
        links,
        links.device.memory_bytes if links and memory is None else memory,
        microbatches=options.chosen_microbatches(microbatches, used),
        workers=workers,
        placement=homes,
        seconds=seconds,
        optimizer_states=optimizer_states,
        host_bytes_per_s=host_bandwidth,
        seed=seed,
    )
    typer.echo(found)
    rows = []
    for worker, peak in enumerate(found.peak_bytes):
        own = [s for s, homes in enumerate(found.schedule.stage_workers) if worker in homes]
        rows.append([str(worker), listed(own), f"{peak / 1e6:,.1f}"])
    options.print_table(["worker", "stages", "peak (MB)"], rows)
    if output is None or output.suffix == ".csv":
        options.save(output, found.schedule.to_csv)
    else:
        timed = pk.simulation.Costs(costs, host_bytes_per_s=host_bandwidth)
        options.save_timelines([pk.simulate(found.schedule, timed, used, links)], output)
