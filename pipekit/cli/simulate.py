"""``pipekit simulate``: the predicted time and memory of a schedule, with nothing run."""

import math
from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk
from pipekit.cli.common import options
from pipekit.cli.common.options import File
from pipekit.cli.schedule import chosen_schedule
from pipekit.units import bytes_text, plural


def simulate(
    method: Annotated[str, typer.Argument(metavar="METHOD")],
    profile: Path,
    plan: Path | None = None,
    stages: Annotated[int, typer.Option(min=1)] = 4,
    microbatches: int | None = None,
    batches: Annotated[int, typer.Option(min=1)] = 4,
    cluster: str | None = None,
    workers: int | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    host_bandwidth: float | None = None,
    shards: Annotated[int | None, typer.Option(min=2)] = None,
    optimizer_states: float = 0,
    validate: Annotated[str | None, typer.Option(metavar="first|later")] = None,
    mitigation: str | None = None,
    output: File = None,
) -> None:
    """Estimate the seconds and the bytes of a schedule, from a profile and a cluster's links.

    Without --cluster or --bandwidth, links cost nothing.

    \b
    [b]Examples[/b]
      pipekit simulate gpipe vgg16.json --stages 4 --cluster pipedream-a
      pipekit simulate 2bw gpt.json --plan plan.json --cluster 2bw-v100
      pipekit simulate pipedream vgg16.json --workers 4 --bandwidth 1.25e9 \\
        --output timeline.svg

    Args:
        method: A method's name, or a schedule's .csv or .txt file; see pipekit schedule --help.
        stages: Without a plan: number of stages, a worker each.
        batches: Number of batches.
        shards: Workers that share a stage's weights, for what gathers them.
        validate: When all stages agree on clipping or skipping an update: before it, or later; by
            default never.
        output: Draw the timeline: .svg (and .csv) or .html; or write it for Perfetto:
            .perfetto.json.
    """
    from pipekit.schedules.methods.by_name import TABLES

    options.require_suffix(output, (".svg", ".html", ".perfetto.json"))
    costs = pk.Profile.load(profile)
    used = options.chosen_plan(costs, plan, stages)
    count = options.chosen_microbatches(microbatches, used)
    replicas = used.replicas
    schedule = chosen_schedule(method, replicas, count, batches)
    if plan is None:  # for as many stages as a file has
        used = options.chosen_plan(costs, None, schedule.stages)
    if plan is None or method in TABLES:  # with two directions, a stage has two workers
        used = used.with_replicas([len(homes) for homes in schedule.stage_workers])
    asked = workers or (used.workers if bandwidth is not None else None)
    links = options.chosen_links(cluster, asked, bandwidth, memory)
    if links is None and (workers or memory or shards):
        raise ValueError(
            "--workers, --memory and --shards are of links: name a --cluster, or say --bandwidth"
        )
    shared = pk.simulation.Shards(shards, links.levels[0].bandwidth) if shards and links else None
    trace = pk.simulate(
        schedule,
        pk.simulation.Costs(costs, host_bytes_per_s=host_bandwidth, shards=shared),
        used,
        links,
        optimizer_states=optimizer_states,
        validate=validate,
        mitigation=mitigation,
    )
    _print(trace, used, costs, links.device.memory_bytes if links else math.inf)
    if used.predicted_s and plan is not None:
        pipelines = used.replicas[0] if used.method == "parallel_pipelines" else 1
        planned_ms = 1e3 * used.predicted_s / pipelines
        typer.echo(
            f"the plan predicts {planned_ms:.4g} ms, as if its slowest stage or transfer never "
            f"waited, and the pipeline had no beginning and no end"
        )
    if output is not None and output.suffix != ".json":
        options.save_timelines([trace], output)
    else:
        options.save(output, trace.to_perfetto)


def _print(trace: "pk.Trace", plan: "pk.Plan", costs: "pk.Profile", memory: float) -> None:
    from pipekit.reading import printable

    assert trace.memory is not None
    assert trace.transfers is not None
    microbatches = (int(trace.frame["microbatch"].max()) + 1) // trace.chunks
    each_ms = 1e3 * trace.makespan_s / microbatches
    typer.echo(
        f"{printable(trace.name)}: {trace.makespan_s:.4g} s, "
        f"{each_ms:.4g} ms a microbatch of {plural(plan.microbatch_rows, 'row')}, "
        f"{pk.traces.describe_bubbles(trace.bubbles())} (simulated)"
    )
    typer.echo(pk.traces.describe_gaps(trace.gaps(), trace.makespan_s, trace.workers))
    origin = printable(str(costs.provenance.get("label", "of unknown origin")))
    typer.echo(f"the costs of the {len(costs)} layers are {origin}")
    sent = trace.transfers.groupby("source")["bytes"].sum()
    rows: list[list[str]] = []
    for worker, events in trace.frame.groupby("worker"):
        busy = float((events["end_s"] - events["start_s"]).sum())
        share = f"{busy / trace.makespan_s:.1%}" if trace.makespan_s else "-"
        bytes_ = sent.get(worker, 0), trace.memory.peak_bytes[int(str(worker))]
        stages = " ".join(map(str, sorted(events["stage"].unique())))
        row = [str(worker), stages, share, *(f"{each / 1e6:,.1f}" for each in bytes_)]
        if rows and rows[-1][1:] == row[1:]:
            row[0] = f"{rows.pop()[0].split('-')[0]}-{worker}"
        rows.append(row)
    options.print_table(["worker", "stages", "busy", "sends (MB)", "peak (MB)"], rows)
    peak = max(trace.memory.peak_bytes)
    if peak > memory:
        typer.echo(
            f"worker {trace.memory.peak_bytes.index(peak)} does not fit: it needs "
            f"{bytes_text(peak)}, and its device has {bytes_text(memory)}"
        )
