"""PipeDream-2BW's memory formulas (section 3) on a GPT of equal stages that the engine trains."""

from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import nn

from experiments import study
from experiments.pipedream_2bw.systems import BATCHES, TABLES, TWO_BW
from pipekit.clusters import V100
from pipekit.engine import Execution, Pipeline, Watch, measure_memory
from pipekit.models.transformer import Block
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule, check
from pipekit.simulation import simulate
from pipekit.simulation.costs import stage_costs
from pipekit.traces.memory import Memory


class Sizes(NamedTuple):
    """What section 3's formulas are made of, in bytes: |W| / d, |A_total(b)| / d, |A_input(b)|."""

    weights: float
    activations: float
    inputs: float


@dataclass(frozen=True)
class EqualStages:
    """A system at work on equal stages: GPT's blocks alone, without embedding and head.

    ``depth`` stages, d, of a worker each, must divide the ``blocks``; ``microbatches`` of a batch,
    m, have ``rows`` sequences, b, of so many tokens; ``hidden`` is h.
    """

    system: str
    depth: int
    microbatches: int
    rows: int
    recompute: Recompute = "always"
    blocks: int = 4
    hidden: int = 32
    sequence: int = 16

    @property
    def schedule(self) -> Schedule:
        return TABLES[self.system](self.depth, self.microbatches)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The most microbatches in flight on each stage."""
        return check(self.schedule.take(BATCHES)).peak_in_flight

    @property
    def plan(self) -> Plan:
        balance = [self.blocks // self.depth] * self.depth
        return Plan.by_hand(balance, rows=self.rows, recompute=self.recompute)

    @property
    def profile(self) -> Profile:
        """The bytes of a microbatch (simulated)."""
        return _one_row(self.blocks, self.hidden, self.sequence).scaled(self.rows)

    @property
    def sizes(self) -> Sizes:
        (stage, *_) = stage_costs(self.schedule.take(1), self.profile, self.plan)
        return Sizes(stage.whole.parameter_bytes, stage.kept_bytes, stage.received_bytes)

    def formula(self) -> float:
        """Return the bytes of the fullest worker by section 3.

        With recomputation 2BW's are 2|W|/d + |A_total(b)|/d + d |A_input(b)|; Flush has one
        version, GPipe besides it m inputs (sections 3.1, 3.2).  Without, every microbatch in flight
        has a full stash, which is its input and what the layers keep.
        """
        versions = 2 if self.system == TWO_BW else 1
        stashes = 1 if self.recompute == "always" else self.in_flight[0]
        weights, activations, inputs = self.sizes
        return versions * weights + stashes * activations + self.in_flight[0] * inputs

    def simulated(self) -> Memory:
        """Return what the workers should hold."""
        return study.memory_of(simulate(self.schedule.take(BATCHES), self.profile, self.plan))

    def trained(self) -> Memory:
        """Return what they hold in a real training (measured)."""
        pipeline = Pipeline(
            _model(self.blocks, self.hidden),
            self.schedule,
            balance=self.plan,
            optimizer=partial(torch.optim.SGD, lr=0.01),
            loss=lambda output, _: output.square().mean(),
            execution=Execution(devices=["cpu"] * self.depth),
        )
        # No targets, which would be counted too.
        rows = self.microbatches * self.rows
        batch = torch.rand(rows, self.sequence, self.hidden), torch.empty(rows, 0)
        return measure_memory(pipeline.train([batch] * BATCHES, watch=Watch(memory=True)))


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
