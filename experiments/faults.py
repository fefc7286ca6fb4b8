"""Kill -9 workers of trainings at random moments, resume, and compare every bit with no kill.

    python experiments/faults.py                    # 50 kills, about 6 minutes
    python experiments/faults.py --kills 3 --seed 7
    python experiments/faults.py --output results/reference/faults

A trial trains two epochs by one of the methods, each worker a process, with checkpoints every few
batches.  At a random moment one worker gets SIGKILL.  Then, as after a crash, everything is built
anew, the default generator is seeded otherwise, and the training is resumed, over threads or over
processes, where it may be killed again.  Now and then the newest checkpoint is damaged first: a
file of it is cut short or has a bit flipped.

In the end the last checkpoint, which holds weights, stashed versions, running statistics, the
states of optimizer, scheduler and random numbers and all losses, is compared with that of the same
training without kills, over threads.
"""

import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from pipekit import Pipeline, Schedule, WorkerDied, schedules
from pipekit.engine.checkpoints import files as checkpoints
from pipekit.papers.pipedream.checkpoints import (
    Struck,
    differences,
    kill,
    worker_processes,
)
from pipekit.provenance import provenance, write
from pipekit.schedules import Op, Task

EPOCHS, BATCHES, ROWS = 2, 24, 8
PACE_S = 0.01  # of every batch, so that there are moments to choose from


def reversed_gpipe(stages: int, microbatches: int, batches: int) -> Schedule:
    """A user's own method: GPipe's Figure 2c, the backwards in reversed order."""

    def worker(stage: int) -> tuple[Task, ...]:
        tasks = []
        for t in range(batches):
            batch = range(t * microbatches, (t + 1) * microbatches)
            tasks += [Task(Op.FORWARD, stage, k, t) for k in batch]
            tasks += [Task(Op.BACKWARD, stage, k, t) for k in reversed(batch)]
            tasks.append(Task(Op.UPDATE, stage, batch[-1], t + 1))
        return tuple(tasks)

    return Schedule(tuple(worker(stage) for stage in range(stages)), "reversed GPipe")


METHODS: dict[str, Callable[[int], Schedule]] = {
    "GPipe": partial(schedules.gpipe, 3, 4),
    "PipeDream-Flush": partial(schedules.flush, 3, 4),
    "2BW": partial(schedules.two_bw, 3, 4),
    "model parallelism": partial(schedules.model_parallel, 2),
    "PipeDream": partial(schedules.pipedream, 3),
    "PipeDream, vertical sync": partial(schedules.pipedream, 3, vertical_sync=True),
    "PipeDream, no stashing": partial(schedules.pipedream, 3, stashing=False),
    "PipeDream 2-1": partial(schedules.pipedream, [2, 1]),
    "PipeDream 2-1-1": partial(schedules.pipedream, [2, 1, 1]),
    "BSP on 3": partial(schedules.pipedream, [3]),
    "ASP on 2": partial(schedules.asp, 2),
    "2 x PipeDream-Flush": lambda n: schedules.replicate(schedules.flush(2, 2, n), 2),
    "2 x 2BW": lambda n: schedules.replicate(schedules.two_bw(2, 2, n), 2),
    "reversed GPipe (own)": partial(reversed_gpipe, 3, 4),
}
BALANCE = {1: [8], 2: [4, 4], 3: [2, 3, 3]}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.3)),
        *(nn.Linear(12, 12), nn.Dropout(0.5), nn.Tanh(), nn.Linear(12, 3)),
    )


def data() -> DataLoader[Any]:
    """Batches in an order that the default generator draws anew in every epoch."""
    generator = torch.Generator().manual_seed(1)
    rows = BATCHES * ROWS
    inputs, targets = (torch.randn(rows, n, generator=generator) for n in (6, 3))
    return DataLoader(TensorDataset(inputs, targets), batch_size=ROWS, shuffle=True)


class Paced:
    """The data, not too fast."""

    def __init__(self) -> None:
        self._loader = data()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            time.sleep(PACE_S)
            yield batch


def kill_one(draw: random.Random) -> None:
    """Send SIGKILL to one of the worker processes, at some moment from now, if any is left."""
    time.sleep(draw.uniform(0, 3 * PACE_S))
    if workers := sorted(worker_processes()):
        kill(draw.choice(workers))


class Setting(NamedTuple):
    """What is trained, and how often it is saved."""

    method: str
    optimizer: str
    every: int

    @classmethod
    def drawn(cls, draw: random.Random, method: str) -> "Setting":
        """Return a method's training with the rest picked at random."""
        return cls(method, draw.choice(["SGD", "Adam"]), draw.choice([1, 2, 5]))

    def pipeline(self, transport: str) -> Pipeline:
        """Return the training, at its beginning."""
        schedule = METHODS[self.method]
        makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
            "Adam": partial(torch.optim.Adam, lr=0.01),
        }
        return Pipeline(
            network(),
            schedule,
            balance=BALANCE[schedule(1).stages],
            optimizer=makers[self.optimizer],
            lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=7, gamma=0.8),
            loss=nn.MSELoss(),
            transport=transport,
        )


def train(
    setting: Setting, folder: Path, transport: str, draw: random.Random, fatal: int | None = None
) -> None:
    """Train to the end, from the newest checkpoint if there is one; at batch ``fatal``, kill."""
    pipeline = setting.pipeline(transport)
    begun = checkpoints.newest(folder) is not None
    torch.manual_seed(draw.getrandbits(32) if begun else 2)
    for epoch in range(pipeline.resume(folder), EPOCHS):
        batches: Paced | Struck = Paced()
        if fatal is not None and fatal // BATCHES == epoch:
            batches = Struck(Paced(), fatal % BATCHES, partial(kill_one, draw))
        pipeline.train(batches, trace=False, checkpoints=folder, every=setting.every)


def damage(folder: Path, draw: random.Random) -> str:
    """Harm a file of the newest complete checkpoint, if there is another one; return how."""
    complete = [home for home in sorted(folder.glob("batch-*")) if checkpoints.is_complete(home)]
    if len(complete) < 2:
        return ""
    path = draw.choice(checkpoints.parts_of(complete[-1])).path
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    how = draw.choice(["cut short", "a bit flipped"])
    if how == "cut short":
        content = content[:at]
    else:
        content[at] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return how


def trial(seed: int, method: str, folder: Path, most: int) -> list[dict[str, Any]]:
    """Return a row for each kill, ``most`` at most."""
    draw = random.Random(seed)
    setting = Setting.drawn(draw, method)
    train(setting, folder / "whole", "threads", draw)
    saved, transport = folder / "killed", "distributed"
    rows: list[dict[str, Any]] = []
    running = True
    while running:
        fatal = None
        if transport == "distributed" and len(rows) < most:
            fatal = draw.randrange(EPOCHS * BATCHES)
        try:
            train(setting, saved, transport, draw, fatal)
            running = False
        except WorkerDied as error:
            harm = damage(saved, draw) if draw.random() < 0.25 else ""
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                home = checkpoints.newest(saved)
            warnings.simplefilter("ignore", UserWarning)  # it comes again
            transport = draw.choice(["threads", "distributed"])
            row = {**setting._asdict(), "killed": str(error).split("'")[0], "before batch": fatal}
            row["from batch"] = int(home.name.split("-")[1]) if home else 0
            row |= {"damage": harm, "warned": bool(caught), "resumed over": transport}
            rows.append(row)
    whole, end = checkpoints.newest(folder / "whole"), checkpoints.newest(saved)
    equal = whole is not None and end is not None and not differences(whole, end)
    return [{"trial": seed, **row, "equal": equal} for row in rows]


def show(rows: pd.DataFrame) -> None:
    table = Table(title=f"{len(rows)} workers killed at random moments (measured)")
    for column in ("method", "kills", "from a checkpoint", "damaged, found", "equal to the bit"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, group in [*rows.groupby("method"), ("all", rows)]:
        damaged = group[group["damage"] != ""]
        table.add_row(
            str(name),
            str(len(group)),
            str((group["from batch"] > 0).sum()),
            f"{len(damaged)}, {damaged['warned'].sum()}",
            f"{group['equal'].sum()} of {len(group)}",
        )
    Console().print(table)


def main(
    kills: Annotated[int, typer.Option(min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Of settings and moments.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for the rows, provenance.")] = None,
) -> None:
    """Kill workers of random trainings, resume, compare."""
    rows: list[dict[str, Any]] = []
    names = list(METHODS)
    random.Random(seed).shuffle(names)
    number = 0
    with tqdm(total=kills, unit="kill") as bar:
        while len(rows) < kills:
            with tempfile.TemporaryDirectory(prefix="pipekit-faults-") as folder:
                method = names[number % len(names)]
                found = trial(seed + number, method, Path(folder), kills - len(rows))
            rows += found
            bar.update(len(found))
            number += 1
    frame = pd.DataFrame(rows)
    show(frame)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        frame.to_csv(output / "kills.csv", index=False)
        parameters = {"kills": kills, "epochs": EPOCHS, "batches": BATCHES, "rows": ROWS}
        write(output / "provenance.json", provenance("measured", seed=seed, parameters=parameters))
    if not frame["equal"].all():
        raise SystemExit("a resumed training differs from the one without kills")


if __name__ == "__main__":
    typer.run(main)
