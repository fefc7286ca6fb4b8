"""PipeDream-2BW's update equations and memory formulas (section 3) beside real trainings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments import study
from experiments.pipedream_2bw.systems import BATCHES, TABLES, TWO_BW
from experiments.study.traces import ONLY_BYTES
from experiments.study.training import relative_difference
from pipekit import oracle
from pipekit.clusters import V100
from pipekit.datasets import Batch
from pipekit.engine import OptimizerFactory, Pipeline, Run
from pipekit.host.provenance import available_cores
from pipekit.models.transformer import Block
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.simulation import simulate
from pipekit.simulation.costs import stage_costs
from pipekit.traces.memory import Memory


class Momentum(Optimizer):
    """m_t = beta m_{t-1} + (1 - beta) g, W = W - lr m_t, as section 3.1 writes it."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, beta: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                mean.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                parameter.add_(mean, alpha=-group["lr"])


class Compared(NamedTuple):
    """A training by the engine beside the same by its equation."""

    run: Run
    difference: float  # relative 2-norm, of the final weights
    losses_equal: bool  # to the bit
    states: float  # optimizer state tensors a parameter, in the stage that has the most


def compared(
    model: nn.Sequential,
    batches: Sequence[Batch],
    schedule: Schedule,
    equation: str,
    optimizer: OptimizerFactory,
    transport: str = "threads",
) -> Compared:
    """Train equal stages by a schedule without end, and by an equation of the oracle."""
    made: list[Optimizer] = []

    def watched(parameters: list[nn.Parameter]) -> Optimizer:
        made.append(optimizer(parameters))
        return made[-1]

    stages, make = schedule.stages, watched if transport == "threads" else optimizer
    how: dict[str, Any] = {"balance": [len(model) // stages] * stages, "loss": nn.MSELoss()}
    pipeline = Pipeline(model, schedule, optimizer=make, transport=transport, **how)
    run = pipeline.train(batches)
    how |= {"replicas": [len(workers) for workers in schedule.stage_workers]}
    how |= {"microbatches": schedule.batch_stops[0], "optimizer": optimizer}
    how |= {"threads": max(1, available_cores() // schedule.worker_count)}
    truth = oracle.train(model, batches, method=equation, **how)
    apart = relative_difference(dict(pipeline.state_dict()), truth.weights[-1])
    states = max((_states(each) for each in made), default=0.0)
    return Compared(run, apart, run.losses == truth.losses, states)


def _states(optimizer: Optimizer) -> float:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [x for state in optimizer.state.values() for x in state.values()]
    return sum(isinstance(x, Tensor) and x.dim() > 0 for x in kept) / len(parameters)


class Sizes(NamedTuple):
    """What section 3's formulas are made of, in bytes."""

    weights: float  # |W| / d
    activations: float  # |A_total(b)| / d
    inputs: float  # |A_input(b)|


@dataclass(frozen=True)
class EqualStages:
    """A system at work on equal stages: GPT's blocks alone, without embedding and head."""

    system: str
    depth: int  # d, which divides the blocks
    microbatches: int  # m
    rows: int  # b, sequences of a microbatch
    recompute: Recompute = "always"
    blocks: int = 4
    hidden: int = 32
    sequence: int = 16  # tokens

    @property
    def schedule(self) -> Schedule:
        return TABLES[self.system](self.depth, self.microbatches)

    @property
    def in_flight(self) -> tuple[int, ...]:
        return check(self.schedule.take(BATCHES)).peak_in_flight

    @property
    def plan(self) -> Plan:
        balance = [self.blocks // self.depth] * self.depth
        return Plan.by_hand(balance, rows=self.rows, recompute=self.recompute)

    @property
    def profile(self) -> Profile:
        return _one_row(self.blocks, self.hidden, self.sequence).scaled(self.rows)

    @property
    def sizes(self) -> Sizes:
        (stage, *_) = stage_costs(self.schedule.take(1), self.profile, self.plan)
        return Sizes(stage.whole.parameter_bytes, stage.kept_bytes, stage.received_bytes)

    def formula(self) -> float:
        """Return the bytes of the fullest worker by section 3.

        With recomputation 2BW's are 2|W|/d + |A_total(b)|/d + d |A_input(b)|; Flush has one
        version, GPipe m inputs (3.1, 3.2).  Without, every microbatch in flight has a full stash.
        """
        versions = 2 if self.system == TWO_BW else 1
        stashes = 1 if self.recompute == "always" else self.in_flight[0]
        weights, activations, inputs = self.sizes
        return versions * weights + stashes * activations + self.in_flight[0] * inputs

    def simulated(self) -> Memory:
        return study.memory_of(simulate(self.schedule.take(BATCHES), self.profile, self.plan))

    def trained(self) -> Memory:
        """Return what they hold in a real training (measured)."""
        model = _model(self.blocks, self.hidden)
        pipeline = study.on_cpus(model, self.schedule, balance=self.plan, **ONLY_BYTES)
        # No targets, which would be counted too.
        rows = self.microbatches * self.rows
        batch = torch.rand(rows, self.sequence, self.hidden), torch.empty(rows, 0)
        return study.trained_memory(pipeline, [batch] * BATCHES)


def counted(memory: Memory) -> float:
    """Return the most bytes of any worker as the formulas count: no gradients, no optimizer."""
    return float(memory.frame[["weights", "activations", "recompute"]].sum(axis=1).max())


def _model(blocks: int, hidden: int) -> nn.Sequential:
    """Return blocks, each ``[b, T, h]`` to itself, in float32."""
    return nn.Sequential(*(Block(hidden, 2, causal=True, norm="pre") for _ in range(blocks)))


@cache
def _one_row(blocks: int, hidden: int, sequence: int) -> Profile:
    with torch.device("meta"):
        return Profile.analytic(_model(blocks, hidden), torch.rand(1, sequence, hidden), V100)
