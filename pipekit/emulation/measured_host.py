"""What the engine takes on this host beside its passes, found by a short training."""

import statistics
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pipekit.engine import Execution, Pipeline
from pipekit.host.memory import keep_freed_memory
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.profiling.measured import profile
from pipekit.schedules import gpipe
from pipekit.simulation import Host

_WIDTH, _ROWS = 640, 16  # weights that fill caches, in passes of about a millisecond
_FIRST, _LAST = 3, 5  # linear layers of each stage: the last never waits for another forward
_COPIES = 1, 32  # of the values that a message has
_MICROBATCHES, _BATCHES = 4, 8


def measured_host(transport: str, repeats: int = 5) -> Host:
    """Measure this host, with a transport, by two stages of linear layers, in some ten seconds.

    They train by GPipe's schedule, with messages of 41 kB and of 1.3 MB.  The second stage, the
    slower one, waits for nothing between its forwards, nor before its first backward, and the first
    stage waits before each of its own.  So the gaps between tasks give what tasks, messages and
    waking take; what passes take more than in a profile taken just before is ``pass_s``.  Medians
    of ``repeats`` count.
    """
    split = Plan.by_hand([2 * _FIRST + 1, 2 * _LAST + 1], rows=_ROWS)
    found = [_measured(_model(copies), split, transport, repeats) for copies in _COPIES]
    sizes = [4.0 * _ROWS * _WIDTH * copies for copies in _COPIES]
    return host_from(sizes, found)


def host_from(sizes: Sequence[float], found: Sequence[dict[str, float]]) -> Host:
    """Return what the gaps of two trainings say."""
    task_s = statistics.mean(each["task"] for each in found)
    send, receive = ([each[name] - task_s for each in found] for name in ("send", "receive"))
    taken = [s + r + task_s for s, r in zip(send, receive, strict=True)]
    wakes = [each["answer"] - other for each, other in zip(found, taken, strict=True)]
    send_s, send_byte_s = _line(sizes, send)
    receive_s, receive_byte_s = _line(sizes, receive)
    return Host(
        pass_s=max(0.0, statistics.mean(each["pass"] for each in found)),
        task_s=task_s,
        batch_s=max(0.0, statistics.mean(each["batch"] for each in found) - task_s),
        send_s=send_s,
        send_byte_s=send_byte_s,
        receive_s=receive_s,
        receive_byte_s=receive_byte_s,
        wake_s=max(0.0, statistics.mean(wakes)),
    )


def gaps(frame: pd.DataFrame) -> dict[str, float]:
    """Return the median gaps between tasks of a training by GPipe's schedule on two stages.

    A ``task`` is behind the last stage's last forward, a ``batch`` behind the first one's update; a
    ``send`` is between two forwards of the first stage and two backwards of the last, a ``receive``
    between two forwards of the last, an ``answer`` between two backwards of a microbatch.
    """
    tasks = [list(own.sort_values("start_s").itertuples()) for _, own in frame.groupby("worker")]
    between: dict[tuple[int, str, str], list[float]] = {}
    for worker, own in enumerate(tasks):
        for one, other in pairwise(own):
            gap = other.start_s - one.end_s
            between.setdefault((worker, one.op, other.op), []).append(gap)
    middle = {key: statistics.median(each) for key, each in between.items()}
    first, last = ({x.microbatch: x for x in own if x.op == "BACKWARD"} for own in tasks)
    return {
        "task": middle[1, "FORWARD", "BACKWARD"],
        "batch": middle[0, "UPDATE", "FORWARD"],
        "send": (middle[0, "FORWARD", "FORWARD"] + middle[1, "BACKWARD", "BACKWARD"]) / 2,
        "receive": middle[1, "FORWARD", "FORWARD"],
        "answer": statistics.median(first[k].start_s - last[k].end_s for k in first),
    }


def longer(frame: pd.DataFrame, costs: Profile, split: Plan) -> float:
    """Return how many seconds more than profiled the passes of a run took, on average."""
    took = (frame["end_s"] - frame["start_s"]).groupby([frame["stage"], frame["op"]]).mean()
    stages = [costs.stage(stage.first, stage.stop) for stage in split.stages]
    return statistics.mean(
        float(took[number, op]) - seconds
        for number, stage in enumerate(stages)
        for op, seconds in (("FORWARD", stage.forward_s), ("BACKWARD", stage.backward_s))
    )


def _measured(model: nn.Sequential, split: Plan, transport: str, repeats: int) -> dict[str, float]:
    # As workers' own processes do: else the first batch of a run pays for memory given back before.
    keep_freed_memory()
    rows, loss, optimizer = torch.rand(_ROWS, _WIDTH), nn.MSELoss(), partial(SGD, lr=0.01)
    pipeline = Pipeline(
        model,
        gpipe(2, _MICROBATCHES),
        balance=split,
        optimizer=optimizer,
        loss=loss,
        execution=Execution(devices=["cpu"] * 2),
        transport=transport,
    )
    whole = torch.cat([rows] * _MICROBATCHES)
    batches = [(whole, whole)] * _BATCHES
    for _ in range(2):
        pipeline.train(batches)  # to warm up
    found = []
    for _ in range(repeats):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the layers' times add up")  # they are made to
            costs = profile(
                model, rows, repeats=5, loss=loss, target=rows, optimizer=optimizer, others=1
            )
        frame = pipeline.train(batches).trace.frame
        found.append(gaps(frame) | {"pass": longer(frame, costs, split)})
    pipeline.close()
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _line(sizes: Sequence[float], took: Sequence[float]) -> tuple[float, float]:
    """Return seconds of a message, and of each byte, neither below 0."""
    byte_s = max(0.0, (took[1] - took[0]) / (sizes[1] - sizes[0]))
    return max(0.0, took[0] - byte_s * sizes[0]), byte_s


def _model(copies: int) -> nn.Sequential:
    first, last = (
        [layer for _ in range(count) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())]
        for count in (_FIRST, _LAST)
    )
    return nn.Sequential(*first, _Widened(copies), _Widened(1), *last)


class _Widened(nn.Module):
    """[rows, width] to [rows, copies * width]; with one copy, the other way."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :_WIDTH].repeat(1, self.copies)
