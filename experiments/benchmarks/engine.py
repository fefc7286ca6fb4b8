"""Microseconds a microbatch: this engine, torch.distributed.pipelining and plain serial training.

    python experiments/benchmarks/engine.py                   # all 12 cases, 8 minutes
    python experiments/benchmarks/engine.py --quick           # 16 microbatches only, 80 s
    python experiments/benchmarks/engine.py --width 16 --stages 4 --microbatches 16 --repeats 3

All contestants train the same model on the same batches from the same weights: for every batch, m
microbatches forward and backward, one SGD step, gradients zeroed, the loss being the mean of the
whole batch.  Interleaved, a worker has two stages of half the size, where those still have weights.
The clock runs from the end of one update to that of another, some batches later (see
workload.py): start-up and the first batches do not count, and feeding the data does, for
"distributed" from the parent process.  Every worker has its share of the cores, as has "serial";
"serial, all cores" has all.

In every repeat each contestant runs once, and ratios are between runs of the same repeat; the table
shows medians.  Ours has tracing on, as by default, unless the row says otherwise.

Run it alone: beside other programs every time is longer, and that of "serial, all cores" many times
longer, because OpenMP's threads spin while they wait for one that has lost its core.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import pandas as pd
import peers
import torch
import typer
from crew import Crew
from outcome import conclude, wide_console
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm
from workload import INTERLEAVED, PAIRS, Case, microseconds, timed_sgd

from pipekit import Execution, Pipeline, Watch
from pipekit.host.operator_threads import share_cores
from pipekit.host.provenance import provenance
from pipekit.schedules import Schedule, flush, gpipe, interleaved

CASE = ["width", "stages", "microbatches"]
CONTESTANT = ["engine", "schedule", "tracing"]
METHODS: dict[str, Callable[[Case], Schedule]] = {
    "GPipe": lambda case: gpipe(case.stages, case.microbatches),
    # PipeDream-Flush is 1F1B within a batch.
    "1F1B": lambda case: flush(case.stages, case.microbatches),
    INTERLEAVED: lambda case: interleaved(
        len(case.balance(INTERLEAVED)), case.microbatches, workers=case.stages
    ),
}
TORCH = "torch pipelining"


class Contestant(NamedTuple):
    """Who trains."""

    engine: str
    schedule: str = ""
    tracing: bool = False


SERIAL = Contestant("serial")
CONTESTANTS = [
    SERIAL,
    Contestant("threads", "GPipe", tracing=True),
    Contestant("threads", "1F1B", tracing=True),
    Contestant("threads", "1F1B", tracing=False),
    Contestant("threads", INTERLEAVED, tracing=True),
    Contestant("distributed", "GPipe", tracing=True),
    Contestant("distributed", "1F1B", tracing=True),
    Contestant("distributed", "1F1B", tracing=False),
    Contestant("distributed", INTERLEAVED, tracing=True),
    Contestant(TORCH, "GPipe"),
    Contestant(TORCH, "1F1B"),
    Contestant(TORCH, INTERLEAVED),
    Contestant("serial, all cores"),
]


class Target(NamedTuple):
    """What the rows that ``rows`` selects should reach: at most (≤) or at least (≥) a limit."""

    name: str
    rows: str
    column: str
    sign: str
    limit: float

    def reached(self, value: float) -> bool:
        """Return whether a row's value reaches the limit."""
        return value <= self.limit if self.sign == "≤" else value >= self.limit


def traced(engine: str, width: int) -> str:
    """Return what selects the rows that are held to a target."""
    return f"engine == '{engine}' and width == {width} and tracing and schedule != '{INTERLEAVED}'"


TARGETS = [
    Target(
        "threads, width 16, 4 stages: µs",
        traced("threads", 16) + " and stages == 4",
        "us",
        "≤",
        550,
    ),
    Target(
        "threads, width 16, 4 stages: × torch",
        traced("threads", 16) + " and stages == 4",
        "vs_torch",
        "≥",
        4,
    ),
    Target("threads, width 512: × serial", traced("threads", 512), "vs_serial", "≥", 1.4),
    Target("distributed, width 16: × torch", traced("distributed", 16), "vs_torch", "≥", 1.4),
    Target("distributed, width 512: × torch", traced("distributed", 512), "vs_torch", "≥", 1.15),
    Target("tracing on / off", "tracing_cost.notna()", "tracing_cost", "≤", 1.05),
    Target(
        "weights − serial, largest",
        "engine in ('threads', 'distributed')",
        "max_difference",
        "≤",
        0,
    ),
]


def serial(case: Case, stamps: Path) -> list[Tensor]:
    model = case.model()
    optimizer = timed_sgd(model.parameters(), case, stamps)
    loss_of = nn.MSELoss()
    for batch in case.batches():
        inputs, targets = (torch.tensor_split(t, case.microbatches) for t in batch)
        for x, y in zip(inputs, targets, strict=True):
            (loss_of(model(x), y) / case.microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def ours(case: Case, stamps: Path, contestant: Contestant) -> list[Tensor]:
    pipeline = Pipeline(
        case.model(),
        METHODS[contestant.schedule](case),
        balance=case.balance(contestant.schedule),
        optimizer=partial(timed_sgd, case=case, stamps=stamps),
        loss=nn.MSELoss(),
        transport=contestant.engine,
        execution=Execution(devices=["cpu"] * case.stages),
    )
    pipeline.train(case.batches(), watch=Watch(trace=contestant.tracing))
    return list(pipeline.state_dict().values())


def train(case: Case, stamps: Path, contestant: Contestant, crew: Crew) -> list[Tensor]:
    if contestant.engine == TORCH:
        return peers.train(crew, case, contestant.schedule, stamps)
    share_cores(1 if contestant.engine == "serial, all cores" else case.stages)
    if contestant.engine.startswith("serial"):
        return serial(case, stamps)
    return ours(case, stamps, contestant)


def measure(
    case: Case,
    entered: list[Contestant],
    crew: Crew,
    repeats: int,
    done: Callable[[], object],
) -> pd.DataFrame:
    """Run every contestant ``repeats`` times; return a row a run."""
    rows = []
    for repeat in range(repeats):
        weights: dict[Contestant, list[Tensor]] = {}
        times: dict[Contestant, float] = {}
        # Whoever runs first or after whom differs between repeats.
        for contestant in rotated(entered, 3 * repeat):
            with tempfile.TemporaryDirectory(prefix="pipekit-benchmark-") as folder:
                stamps = Path(folder, "stamps")
                weights[contestant] = train(case, stamps, contestant, crew)
                times[contestant] = microseconds(case, stamps)
            done()
        for contestant in entered:
            us = times[contestant]
            rival = times.get(Contestant(TORCH, contestant.schedule))
            untraced = times.get(contestant._replace(tracing=False))
            rows.append(
                {
                    **case._asdict(),
                    **contestant._asdict(),
                    "repeat": repeat,
                    "us": us,
                    "vs_serial": times[SERIAL] / us,
                    "vs_torch": rival / us if rival else None,
                    "tracing_cost": us / untraced if contestant.tracing and untraced else None,
                    "max_difference": max(
                        float((a - b).abs().max())
                        for a, b in zip(weights[contestant], weights[SERIAL], strict=True)
                    ),
                    "bit_equal": all(map(torch.equal, weights[contestant], weights[SERIAL])),
                }
            )
    return pd.DataFrame(rows)


def contestants(case: Case, schedules: list[str]) -> list[Contestant]:
    """Return who can train a case by one of the schedules, and who trains without any."""
    return [
        each
        for each in CONTESTANTS
        if case.allows(each.schedule) and each.schedule in ("", *schedules)
    ]


def rotated(items: list[Contestant], by: int) -> Iterator[Contestant]:
    start = by % len(items)
    yield from items[start:] + items[:start]


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each case and contestant: medians, and the range of the times."""
    return (
        runs.groupby([*CASE, *CONTESTANT], sort=False)
        .agg(
            us=("us", "median"),
            us_min=("us", "min"),
            us_max=("us", "max"),
            vs_serial=("vs_serial", "median"),
            vs_torch=("vs_torch", "median"),
            tracing_cost=("tracing_cost", "median"),
            max_difference=("max_difference", "max"),
            bit_equal=("bit_equal", "all"),
        )
        .reset_index()
    )


def judge(summary: pd.DataFrame) -> list[dict[str, object]]:
    """Return for each target how many rows reach it and the row furthest from it."""
    verdicts = []
    for target in TARGETS:
        rows = summary.query(target.rows, engine="python")
        if rows.empty:
            continue
        values = rows[target.column]
        worst = rows.loc[values.idxmax() if target.sign == "≤" else values.idxmin()]
        verdicts.append(
            {
                "target": target.name,
                "limit": f"{target.sign} {target.limit:g}",
                "rows": len(rows),
                "reached": int(values.map(target.reached).sum()),
                "worst": float(worst[target.column]),
                "median": float(values.median()),
                "worst_row": " ".join(f"{worst[key]}" for key in [*CASE, "engine", "schedule"]),
            }
        )
    return verdicts


def show(summary: pd.DataFrame, verdicts: list[dict[str, object]], console: Console) -> None:
    table = Table(title="µs a microbatch, median (measured); × = times as fast as")
    for heading in ("width", "stages", "m", "engine", "schedule", "tracing"):
        table.add_column(heading)
    for heading in ("µs", "min–max", "× serial", "× torch", "tracing", "weights − serial"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, rows in summary.groupby(CASE, sort=False):
        for row in rows.itertuples():
            table.add_row(
                *map(str, case),
                row.engine,
                row.schedule,
                "on" if row.tracing else "",
                f"{row.us:,.0f}",
                f"{row.us_min:,.0f}–{row.us_max:,.0f}",
                f"{row.vs_serial:.2f}",
                "" if pd.isna(row.vs_torch) else f"{row.vs_torch:.2f}",
                "" if pd.isna(row.tracing_cost) else f"{row.tracing_cost - 1:+.1%}",
                "equal" if row.bit_equal else f"{row.max_difference:.1e}",
            )
        table.add_section()
    console.print(table)
    goals = Table(title="Targets")
    for heading in ("target", "limit", "reached in", "median", "worst", "where"):
        goals.add_column(heading)
    for verdict in verdicts:
        missed = verdict["reached"] != verdict["rows"]
        goals.add_row(
            str(verdict["target"]),
            str(verdict["limit"]),
            f"{verdict['reached']} of {verdict['rows']} rows" + (" MISSED" if missed else ""),
            f"{verdict['median']:.4g}",
            f"{verdict['worst']:.4g}",
            str(verdict["worst_row"]),
            style="red" if missed else "green",
        )
    console.print(goals)


def main(
    quick: Annotated[bool, typer.Option(help="m = 16 only, 2 repeats.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs each; 5, quick: 2.")] = None,
    width: Annotated[list[int] | None, typer.Option(help="Default: 16 and 512.")] = None,
    stages: Annotated[list[int] | None, typer.Option(help="Default: 2 and 4.")] = None,
    microbatches: Annotated[
        list[int] | None, typer.Option(help="In a batch, a power of 2, at least as many as stages.")
    ] = None,
    schedule: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(METHODS)}.  Default: all.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write engine.csv and engine.json to.")
    ] = None,
) -> None:
    """Time the engine beside torch.distributed.pipelining and plain serial training."""
    if unknown := set(schedule or ()) - METHODS.keys():
        raise typer.BadParameter(f"no schedule {', '.join(unknown)}, only {', '.join(METHODS)}")
    depths = stages or [2, 4]
    sizes = microbatches or ([16] if quick else [4, 16, 64])
    repeats = repeats or (2 if quick else 5)
    load = os.getloadavg()[0]
    tables = []
    with ExitStack() as stack, torch.random.fork_rng():
        crews = {count: stack.enter_context(Crew(count)) for count in depths}
        cases = [Case(w, s, m) for w in width or [16, 512] for s in depths for m in sizes]
        entered = {case: contestants(case, schedule or list(METHODS)) for case in cases}
        total = repeats * sum(map(len, entered.values()))
        bar = stack.enter_context(tqdm(total=total, unit="run"))
        for case in cases:
            bar.set_postfix_str(f"width {case.width}, {case.stages} stages, m {case.microbatches}")
            tables.append(measure(case, entered[case], crews[case.stages], repeats, bar.update))
    summary = summarise(pd.concat(tables, ignore_index=True))
    verdicts = judge(summary)
    record = provenance(
        "measured",
        seed=0,
        repeats=repeats,
        model=f"{PAIRS} × (Linear, ReLU)",
        load_average_at_start=load,
        targets=verdicts,
    )
    console = wide_console()
    show(summary, verdicts, console)
    conclude(console, "engine", summary, record, output)


if __name__ == "__main__":
    typer.run(main)
