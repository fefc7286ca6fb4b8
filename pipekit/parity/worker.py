"""One process of the trainer that is judged."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from pipekit.host.parent import end_with_parent
from pipekit.parity.adapter import Stated
from pipekit.parity.plain_loop import LEARNING_RATE, Tensors
from pipekit.parity.suite import SUITE
from pipekit.references import load


@dataclass(frozen=True)
class Job:
    """What every process does.

    Attributes:
        adapter: a reference, or the class itself.
        model: its name in the suite.
        steps: how many batches it trains on.
        seed: of torch's random numbers before each step.
    """

    adapter: Any
    model: str
    steps: int
    seed: int


@dataclass
class Record:
    """What one rank has: what it states and, after 0, 1, 2, ... updates, its tensors.

    ``gradients`` and ``losses`` have one entry fewer than ``parameters``.
    """

    stated: Stated
    parameters: list[Tensors] = field(default_factory=list)
    gradients: list[Tensors] | None = None
    losses: list[float | None] = field(default_factory=list)


def main(
    job: bytes, news: Connection, printing: Connection, environment: Mapping[str, str]
) -> None:
    """Train, and tell where that is and what came of it: a record, or an error and when."""
    end_with_parent()
    os.setsid()  # so that all that the trainer starts can be ended with it
    os.environ.update(environment)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for stream in (sys.stdout, sys.stderr):
        os.dup2(printing.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    printing.close()
    try:
        record = train(cloudpickle.loads(job), lambda at: news.send(("at", at)))
        news.send(("record", cloudpickle.dumps(record)))
    except BaseException as error:
        traceback.print_exc()
        said = " ".join(f"{type(error).__name__}: {error}".split())
        news.send(("error", (time.time_ns(), said)))
    with suppress(EOFError, OSError):
        news.recv()  # the others may still need this process


def train(job: Job, at: Callable[[str], object]) -> Record:
    """Return what this process's adapter does; ``at`` is told what comes next."""
    at("loading the adapter")
    case = SUITE[job.model]
    adapter: Any = (load(job.adapter) if isinstance(job.adapter, str) else job.adapter)()
    at("build()")
    torch.manual_seed(job.seed)
    adapter.build(case.model(), partial(torch.optim.SGD, lr=LEARNING_RATE))
    record = Record(Stated.by(adapter), [_before(adapter)])
    if hasattr(adapter, "gradients"):
        record.gradients = []
    for step, batch in enumerate(case.batches(job.steps, record.stated.microbatches)):
        at(f"step() of batch {step + 1}")
        torch.manual_seed(job.seed + step)
        loss = adapter.step(batch)
        record.losses.append(None if loss is None else float(loss))
        record.parameters.append(_tensors("parameters()", adapter.parameters()))
        if record.gradients is not None:
            record.gradients.append(_tensors("gradients()", adapter.gradients()))
    return record


def _before(adapter: Any) -> Tensors:
    """Return the parameters before any update, of a trainer that has some by then."""
    try:
        return _tensors("parameters()", adapter.parameters())
    except Exception:  # it is asked for them after a step only, by its contract
        return {}


def _tensors(source: str, found: Any) -> Tensors:
    if not isinstance(found, Mapping):
        raise TypeError(f"{source} returns {type(found).__name__}: return a dict of tensors")
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{source} has {type(tensor).__name__} for {name!r}: return tensors, and of no "
                f"parameter without a gradient"
            )
        if tensor.is_meta:
            raise ValueError(f"{source} has {name!r} on the device 'meta', where no numbers are")
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}
