"""PipeDream's Figures 6 and 7: any replicas a stage, and from a model to a trained plan."""

import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from torch import Tensor, nn

from pipekit import oracle
from pipekit.clusters import Cluster
from pipekit.cores import available_cores
from pipekit.engine import Pipeline, Run
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.papers.differences import bit_equal
from pipekit.planning import plan as best_plan
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.profiling.measured import profile as measure
from pipekit.schedules import Schedule, pipedream

Batches = Sequence[tuple[Tensor, Tensor]]


def replica_vectors(machines: int, stages: int) -> Iterator[list[int]]:
    """Yield every way to share so many machines among so many stages, at least one each."""
    for ends in combinations(range(1, machines), stages - 1):
        yield [b - a for a, b in pairwise([0, *ends, machines])]


def trains_as_the_equations_say(
    model: nn.Sequential,
    batches: Batches,
    replicas: Sequence[int],
    balance: Sequence[int],
    optimizer: OptimizerFactory,
    loss: nn.Module,
) -> bool:
    """Train on replicated stages; return whether weights and losses are the oracle's, to the bit.

    Args:
        model: the layers.
        batches: minibatches.
        replicas: workers of each stage.
        balance: layers of each stage.
        optimizer: makes an optimizer.
        loss: of (output, target).
    """
    pipeline = Pipeline(
        model, lambda n: pipedream(replicas, n), balance=balance, optimizer=optimizer, loss=loss
    )
    run = pipeline.train(batches, trace=False)
    truth = oracle.train(
        model,
        batches,
        method="pipedream",
        balance=balance,
        replicas=replicas,
        optimizer=optimizer,
        loss=loss,
        threads=max(1, available_cores() // sum(replicas)),
    )
    return run.losses == truth.losses and bit_equal(dict(pipeline.state_dict()), truth.weights[-1])


class Trained(NamedTuple):
    """What the workflow of Figure 7 leaves behind."""

    profile: Profile
    plan: Plan
    balance: list[int]
    run: Run


def profile_plan_train(
    model: nn.Sequential,
    batches: Batches,
    cluster: Cluster,
    optimizer: OptimizerFactory,
    loss: nn.Module,
    repeats: int = 10,
) -> Trained:
    """Profile a model, plan its stages and train it by the plan, in one go (Figure 7).

    Nobody says where to cut: the profile is of one minibatch, the plan is PipeDream's for the
    cluster, and the messages of the training are as slow as the cluster's links.

    Args:
        model: the layers.
        batches: minibatches of equally many rows.
        cluster: the machines to plan for and their links.
        optimizer: makes an optimizer.
        loss: of (output, target).
        repeats: passes of the profile.
    """
    inputs, targets = batches[0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the layers' times add up")  # they are made to
        costs = measure(
            model, inputs, repeats=repeats, loss=loss, target=targets, optimizer=optimizer
        )
    plan = best_plan(costs, cluster)

    def method(minibatches: int) -> Schedule:
        return pipedream(plan.replicas, minibatches)

    pipeline = Pipeline(
        model, method, balance=plan, optimizer=optimizer, loss=loss, cluster=cluster
    )
    return Trained(costs, plan, pipeline.balance or [], pipeline.train(batches))


def follows_its_plan(trained: Trained) -> bool:
    """Return whether the stages, and the workers of each, were those of the plan."""
    workers = [len(homes) for homes in trained.run.schedule.stage_workers]
    return trained.balance == trained.plan.balance and workers == trained.plan.replicas


def first_and_last_loss(losses: Sequence[float], share: float = 0.25) -> tuple[float, float]:
    """Return the mean loss of the first and of the last minibatches, so large a share of all."""
    count = max(1, round(share * len(losses)))
    return sum(losses[:count]) / count, sum(losses[-count:]) / count


def command(*words: str) -> str:
    """Run ``pipekit`` in a process of its own, as a shell does; return what it printed.

    Raises:
        RuntimeError: it failed; the message is what it said.
    """
    program = "from pipekit.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"pipekit {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout
