"""Microseconds a microbatch: this engine, torch.distributed.pipelining and plain serial training.

    python -m experiments.benchmarks.engine                   # all 12 cases, 8 minutes
    python -m experiments.benchmarks.engine --quick           # 16 microbatches only, 80 s
    python -m experiments.benchmarks.engine --width 16 --stages 4 --microbatches 16 --repeats 3

All contestants train the same model on the same batches from the same weights: for every batch, m
microbatches forward and backward, one SGD step, gradients zeroed, the loss being the mean of the
whole batch. Interleaved, a worker has two stages of half the size, where those still have weights.
The clock runs from the end of one update to that of another, some batches later: start-up and the
first batches do not count, and feeding the data does, for "distributed" from the parent process.
Every worker has its share of the cores, as has "serial"; "serial, all cores" has all.

In every repeat each contestant runs once, and ratios are between runs of the same repeat; the table
shows medians. Run it alone: beside other programs every time is longer, and that of "serial, all
cores" many times longer, because OpenMP's threads spin while they wait for a thread without a core.
"""

import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from tqdm import tqdm

from experiments.benchmarks.harness import Crew, conclude, crew, measured, show
from pipekit import Execution, Pipeline, Watch
from pipekit.choices import require_choice
from pipekit.host.operator_threads import share_cores
from pipekit.schedules import Schedule, flush, gpipe, interleaved

CASE = ["width", "stages", "microbatches"]
CONTESTANT = ["engine", "schedule", "tracing"]
INTERLEAVED, TORCH = "interleaved", "torch pipelining"
PAIRS = 4  # of Linear and ReLU
SGD = partial(torch.optim.SGD, lr=0.01)


class Case(NamedTuple):
    """A model of four pairs of layers of a width, on so many stages, and microbatches of a batch.

    At width 16 the time goes into the engine, at width 512 into the arithmetic. The microbatches
    are a power of two, so that weighting them rounds nothing.
    """

    width: int
    stages: int
    microbatches: int

    @property
    def rows(self) -> int:
        """Rows of a microbatch."""
        return 32 if self.width < 128 else 64

    @property
    def warm_up(self) -> int:
        """Batches before the clock starts."""
        return max(1, self.timed // 4)

    @property
    def timed(self) -> int:
        """Batches on the clock."""
        return max(1, (512 if self.width < 128 else 128) // self.microbatches)

    def balance(self, schedule: str) -> list[int]:
        """Return the layers of each stage; if they are interleaved, a worker has two."""
        stages = self.stages * (2 if schedule == INTERLEAVED else 1)
        return [2 * PAIRS // stages] * stages

    def model(self) -> nn.Sequential:
        """Return the model with its initial weights, [rows, width] -> [rows, width]."""
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(PAIRS):
            linear = nn.Linear(self.width, self.width)
            # The default shrinks the signal by layer, until gradients hardly move the weights.
            nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers)

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Return (input, target) of every batch, warm-up included, each [rows, width]."""
        generator = torch.Generator().manual_seed(1)
        shape = self.microbatches * self.rows, self.width
        few = [tuple(torch.randn(shape, generator=generator) for _ in "xy") for _ in range(2)]
        return [few[i % 2] for i in range(self.warm_up + self.timed)]  # type: ignore[misc]


def timed_sgd(parameters: Iterable[Any], case: Case, stamps: Path) -> torch.optim.SGD:
    """Return an SGD that writes to ``stamps`` when the clock starts and when it stops.

    So one clock serves every contestant, in whatever thread or process its optimizers live, and
    none pays for its start: that of processes, tables, connections, caches.
    """
    optimizer = SGD(parameters)
    steps = count(1)

    def stamp(*_: object) -> None:
        step = next(steps)
        if step in (case.warm_up, case.warm_up + case.timed):
            now = time.perf_counter()  # the same clock in all processes of a machine
            with stamps.open("a", encoding="ascii") as file:
                file.write(f"{step} {now!r}\n")

    optimizer.register_step_post_hook(stamp)
    return optimizer


def microseconds(case: Case, stamps: Path) -> float:
    """Return the time a microbatch, from the end of one update on all stages to that of another."""
    last: dict[int, float] = {}
    for line in stamps.read_text(encoding="ascii").splitlines():
        step, now = line.split()
        last[int(step)] = max(float(now), last.get(int(step), 0.0))
    seconds = last[case.warm_up + case.timed] - last[case.warm_up]
    return seconds / (case.timed * case.microbatches) * 1e6


METHODS: dict[str, Callable[[Case], Schedule]] = {
    "GPipe": lambda case: gpipe(case.stages, case.microbatches),
    # PipeDream-Flush is 1F1B within a batch.
    "1F1B": lambda case: flush(case.stages, case.microbatches),
    INTERLEAVED: lambda case: interleaved(2 * case.stages, case.microbatches, workers=case.stages),
}
TORCHS: dict[str, Any] = {
    "GPipe": ScheduleGPipe,
    "1F1B": Schedule1F1B,
    INTERLEAVED: ScheduleInterleaved1F1B,
}


class Contestant(NamedTuple):
    """An engine by a schedule."""

    engine: str
    schedule: str = ""
    tracing: bool = False


SERIAL = Contestant("serial")
CONTESTANTS = [
    SERIAL,
    *(Contestant(engine, name, True) for engine in ("threads", "distributed") for name in METHODS),
    Contestant("threads", "1F1B"),
    Contestant("distributed", "1F1B"),
    *(Contestant(TORCH, name) for name in TORCHS),
    Contestant("serial, all cores"),
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


def by_torch(rank: int, case: Case, name: str, stamps: Path) -> dict[int, list[Any]]:
    """Train this process's stages by torch; return their weights as arrays, by stage."""
    balance, model = case.balance(name), case.model()
    stages = {
        stage: PipelineStage(
            model[stage * layers : (stage + 1) * layers], stage, len(balance), torch.device("cpu")
        )
        for stage, layers in enumerate(balance)
        if stage % case.stages == rank
    }
    parameters = {number: list(stage.submod.parameters()) for number, stage in stages.items()}
    optimizer = timed_sgd([p for each in parameters.values() for p in each], case, stamps)
    here = list(stages.values())
    # Gradients are divided by the number of microbatches: the loss is the mean of the batch.
    schedule = TORCHS[name](
        here if name == INTERLEAVED else here[0],
        case.microbatches,
        loss_fn=nn.MSELoss(),
        scale_grads=True,
    )
    batches = case.batches()
    last = rank == case.stages - 1
    dist.barrier()
    for x, y in batches:
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if last else {}))
        optimizer.step()
        optimizer.zero_grad()
    return {stage: [p.detach().numpy() for p in each] for stage, each in parameters.items()}


def train(case: Case, stamps: Path, contestant: Contestant, peers: Crew) -> list[Tensor]:
    """Train a case; return the final weights, in the model's order."""
    if contestant.engine == TORCH:
        by_stage: dict[int, list[Any]] = {}
        for stages in peers.call(by_torch, case, contestant.schedule, stamps):
            by_stage |= stages
        return [torch.from_numpy(each) for _, own in sorted(by_stage.items()) for each in own]
    share_cores(1 if contestant.engine == "serial, all cores" else case.stages)
    if contestant.engine.startswith("serial"):
        return serial(case, stamps)
    return ours(case, stamps, contestant)


def repeated(
    case: Case, entered: list[Contestant], peers: Crew, repeats: int, done: Callable[[], object]
) -> pd.DataFrame:
    """Run every contestant ``repeats`` times; return a row a run."""
    rows = []
    for repeat in range(repeats):
        weights: dict[Contestant, list[Tensor]] = {}
        times: dict[Contestant, float] = {}
        start = 3 * repeat % len(entered)  # the first one, and who follows whom, differ
        for contestant in entered[start:] + entered[:start]:
            with tempfile.TemporaryDirectory(prefix="pipekit-benchmark-") as folder:
                stamps = Path(folder, "stamps")
                weights[contestant] = train(case, stamps, contestant, peers)
                times[contestant] = microseconds(case, stamps)
            done()
        for contestant in entered:
            us = times[contestant]
            rival = times.get(Contestant(TORCH, contestant.schedule))
            untraced = times.get(contestant._replace(tracing=False))
            pairs = list(zip(weights[contestant], weights[SERIAL], strict=True))
            rows.append(
                {
                    **case._asdict(),
                    **contestant._asdict(),
                    "us": us,
                    "vs_serial": times[SERIAL] / us,
                    "vs_torch": rival / us if rival else None,
                    "tracing_cost": us / untraced if contestant.tracing and untraced else None,
                    "max_difference": max(float((a - b).abs().max()) for a, b in pairs),
                    "bit_equal": all(torch.equal(a, b) for a, b in pairs),
                }
            )
    return pd.DataFrame(rows)


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
    for name in schedule or []:
        require_choice("schedule", name, METHODS)
    named = ["", *(schedule or METHODS)]
    depths = stages or [2, 4]
    sizes = microbatches or ([16] if quick else [4, 16, 64])
    repeats = repeats or (2 if quick else 5)
    record = measured(0, repeats=repeats, model=f"{PAIRS} × (Linear, ReLU)")
    entered = {
        case: [
            each
            for each in CONTESTANTS
            if each.schedule in named and min(case.balance(each.schedule)) > 1  # all have weights
        ]
        for case in (Case(*each) for each in product(width or [16, 512], depths, sizes))
    }
    tables = []
    with ExitStack() as stack, torch.random.fork_rng():
        crews = {depth: stack.enter_context(crew(depth)) for depth in depths}
        total = repeats * sum(map(len, entered.values()))
        bar = stack.enter_context(tqdm(total=total, unit="run"))
        for case, contestants in entered.items():
            bar.set_postfix_str(f"width {case.width}, {case.stages} stages, m {case.microbatches}")
            tables.append(repeated(case, contestants, crews[case.stages], repeats, bar.update))
    summary = summarise(pd.concat(tables, ignore_index=True))
    print("us a microbatch, median (measured); vs: times as fast")
    show(summary)
    conclude("engine", summary, record, output)


if __name__ == "__main__":
    typer.run(main)
