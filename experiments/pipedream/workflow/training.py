"""PipeDream's Figures 6 and 7: any replicas a stage, and from a model to a trained plan."""

import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from experiments.pipedream.steady_state import replica_vectors
from experiments.recorded.findings import Finding
from experiments.recorded.judged import judged
from pipekit import Execution, plots
from pipekit.clusters import Cluster
from pipekit.datasets import mnist
from pipekit.engine import OptimizerFactory, Pipeline, Run
from pipekit.planning import plan as best_plan
from pipekit.plans import Plan
from pipekit.profiling import Profile
from pipekit.profiling.measured import profile as measure
from pipekit.schedules import pipedream

Batches = Sequence[tuple[Tensor, Tensor]]


def trains_as_the_equations_say(
    model: nn.Sequential,
    batches: Batches,
    replicas: Sequence[int],
    balance: Sequence[int],
    optimizer: OptimizerFactory,
    loss: nn.Module,
) -> bool:
    """Train on replicated stages; return whether weights and losses are the oracle's bits."""
    found = judged(
        model,
        batches,
        pipedream(replicas),
        "pipedream",
        balance=balance,
        replicas=replicas,
        optimizer=optimizer,
        loss=loss,
    )
    return found.losses_equal and found.weights_equal


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
    """
    inputs, targets = batches[0]
    how: dict[str, Any] = {"loss": loss, "optimizer": optimizer}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the layers' times add up")  # they are made to
        costs = measure(model, inputs, repeats=repeats, target=targets, **how)
    plan = best_plan(costs, cluster)
    method = pipedream(plan.replicas)
    pipeline = Pipeline(model, method, balance=plan, execution=Execution(cluster=cluster), **how)
    return Trained(costs, plan, pipeline.balance or [], pipeline.train(batches))


def vectors_as_the_equations_say(minibatches: int, seed: int) -> dict[str, bool]:
    """Train all 35 ways to share 8 machines among 4 stages; return which are as the oracle's."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))
    data = [(torch.randn(8, 16), torch.randn(8, 16)) for _ in range(minibatches)]
    how = [2, 2, 2, 2], partial(torch.optim.SGD, lr=0.1, momentum=0.9), nn.MSELoss()
    return {
        "-".join(map(str, replicas)): trains_as_the_equations_say(model, data, replicas, *how)
        for replicas in replica_vectors(8, 4)
    }


def vectors_finding(trained: Mapping[str, bool]) -> Finding:
    """Return whether all of :func:`vectors_as_the_equations_say` are."""
    note = (
        f"{len(trained)} replica vectors of 8 machines trained, weights and losses equal to the "
        "oracle's to the bit"
    )
    all_are = all(trained.values())
    return Finding.exact("pipedream-fig6-hybrid-example", all_are, note, "figure6.svg")


def convolutional_network(seed: int) -> nn.Sequential:
    """Return a network for [B, 1, 28, 28] with convolutions first and large linear layers last."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(32 * 7 * 7, 1024), nn.ReLU()),
        nn.Linear(1024, 10),
    )


def train_on(clusters: Mapping[str, Cluster], minibatches: int, seed: int) -> dict[str, Trained]:
    """Profile, plan and train :func:`convolutional_network` on each of several clusters."""
    images, loss = mnist().batches(64, seed)[:minibatches], nn.CrossEntropyLoss()
    adam = partial(torch.optim.Adam, lr=0.001)
    return {
        name: profile_plan_train(convolutional_network(seed), images, cluster, adam, loss)
        for name, cluster in clusters.items()
    }


def losses(trained: Mapping[str, Trained]) -> pd.DataFrame:
    """Return minibatch, loss and "on", the cluster's name, of each training."""
    return pd.DataFrame(
        {"minibatch": minibatch, "loss": loss, "on": name}
        for name, each in trained.items()
        for minibatch, loss in enumerate(each.run.losses, start=1)
    )


def loss_figure(trained: Mapping[str, Trained]) -> go.Figure:
    """Draw :func:`losses`; the first cluster's plan is in the title."""
    first, axes = next(iter(trained.values())), ("minibatch", "loss", "on")
    before, after = first_and_last_loss(first.run.losses)
    title = f"Planned as {first.plan.config} and trained: loss {before:.2f} to {after:.2f}"
    return plots.curves(losses(trained), *axes, title=title, label="measured")


def workflow_finding(trained: Mapping[str, Trained]) -> Finding:
    """Return whether every training followed its plan and learnt."""
    ends = {name: first_and_last_loss(each.run.losses) for name, each in trained.items()}
    told = "; ".join(
        f"{name}: {trained[name].plan.config}, loss {first:.2f} to {last:.2f}"
        for name, (first, last) in ends.items()
    )
    learnt = all(last < first for first, last in ends.values())
    holds = all(map(follows_its_plan, trained.values())) and learnt
    note = f"{told}; by the command line: pipekit profile, plan, train --replicas"
    return Finding.measured("pipedream-fig7-workflow", holds, note, "figure7.svg")


def follows_its_plan(trained: Trained) -> bool:
    """Return whether the stages, and the workers of each, were those of the plan."""
    workers = [len(homes) for homes in trained.run.schedule.stage_workers]
    return trained.balance == trained.plan.balance and workers == trained.plan.replicas


def first_and_last_loss(losses: Sequence[float], share: float = 0.25) -> tuple[float, float]:
    """Return the mean loss of the first and of the last minibatches, so large a share of all."""
    count = max(1, round(share * len(losses)))
    return sum(losses[:count]) / count, sum(losses[-count:]) / count


def command(*words: str) -> str:
    """Run ``pipekit`` as a shell does; return what it printed, or raise what it said."""
    program = "from pipekit.cli import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"pipekit {' '.join(words)}: {done.stderr or done.stdout}")
    return done.stdout


def by_command_line(folder: Path, cluster: Cluster) -> str:
    """Profile, plan and train an MLP by three commands; return what plan and train printed."""
    costs, chosen = str(folder / "mlp.json"), str(folder / "plan.json")
    (level,) = cluster.levels
    links = ["--workers", str(cluster.workers), "--bandwidth", str(level.bandwidth)]
    command("profile", "mlp", "--rows", "64", "--repeats", "5", "--output", costs)
    planned = command("plan", costs, *links, "--output", chosen)
    replicas = Plan.load(chosen).config
    train = ["--model", "mlp", "--method", "pipedream", "--replicas", replicas]
    return f"{planned}\n{command('train', *train)}"
