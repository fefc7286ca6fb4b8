"""Counting what the workers of a training send one another (PipeDream, section 3.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from pipekit.engine import Pipeline
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import FlatBucket, PartKey
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.timelines.tables import from_own_lists
from pipekit.schedules import Message, Schedule, Step, pipedream
from pipekit.trees import Tree, leaves


class MessageCounter(Observer):
    """Counts everything that workers send one another, in ``seen``, by its purpose."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sent(
        self, worker: int, step: Step, message: Message, receiver: int, tree: Tree, size: int
    ) -> None:
        """Count a message between stages; one without tensors is control."""
        self.seen[message.payload.value if leaves(tree) else "control"] += 1

    def part_sent(self, worker: int, receiver: int, key: PartKey, part: FlatBucket) -> None:
        """Count a part of a sum of gradients."""
        self.seen["weights"] += 1

    def values_summed(self, worker: int, update: int, values: Tensor) -> None:
        """Count what decides on an update."""
        self.seen["control"] += 1


def real_messages(replicas: Sequence[Sequence[int]], seed: int) -> pd.DataFrame:
    """Train a small network for 24 minibatches on stages of each of some replicas; count messages.

    A row a training, named like "3-2-2-1": activation, gradient, weights, control.
    """
    torch.manual_seed(seed)
    network = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    data = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(24)]
    sgd, loss = partial(torch.optim.SGD, lr=0.1), nn.MSELoss()
    counters = {"-".join(map(str, vector)): MessageCounter() for vector in replicas}
    for vector, counter in zip(replicas, counters.values(), strict=True):
        method = pipedream(vector)
        pipeline = Pipeline(network, method, balance=[1] * 4, optimizer=sgd, loss=loss)
        pipeline.train(data, observers=[counter])
    kinds = ["activation", "gradient", "weights", "control"]
    seen = pd.DataFrame({name: counter.seen for name, counter in counters.items()})
    return seen.T.reindex(columns=kinds).fillna(0).astype(int)


def coordination_finding(sent: pd.DataFrame, tables: Mapping[tuple[int, ...], Schedule]) -> Finding:
    """Return the messages that coordinate, and the lists that a worker cannot make alone."""
    differing = sum(
        local != listed
        for replicas, table in tables.items()
        for local, listed in zip(
            from_own_lists(replicas, table.microbatches).workers, table.workers, strict=True
        )
    )
    value = [int(sent["control"].sum()), differing]
    note = f"{sent.to_numpy().sum()} messages of two real trainings counted, all of them tensors"
    return Finding.exact("pipedream-static-no-coordination", value, note)
