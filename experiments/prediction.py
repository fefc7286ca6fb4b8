"""Predictions beside real runs: what is trained, and by what seconds are off and why."""

import copy
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from experiments.benchmarks.harness import plain_step
from experiments.study.traces import on_cpus
from pipekit.choices import require_choice
from pipekit.clusters import flat
from pipekit.datasets import Batch, mnist
from pipekit.engine import Loss, OptimizerFactory, Pipeline, Run
from pipekit.host.memory import keep_freed_memory
from pipekit.models import convnet, gpt, token_loss
from pipekit.planning import plan
from pipekit.plans import Plan, Recompute
from pipekit.profiling import Profile
from pipekit.profiling.layer_times import background_load
from pipekit.profiling.measured import profile
from pipekit.schedules import Schedule, check
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from pipekit.simulation import Costs, Host, simulate

KEYS = ["model", "method", "stages", "microbatches", "batches", "transport", "balance"]
"""The columns that name a case of a table."""

LOOPS_WITHIN = 0.03
"""A case is decided where the plain loops beside its runs and its profiles differ by so little."""


@dataclass(frozen=True)
class TrainedModel:
    """What is trained, with one microbatch, [rows, ...]."""

    name: str
    module: nn.Sequential
    inputs: Tensor
    targets: Tensor
    loss: Loss
    optimizer: OptimizerFactory
    optimizer_states: int  # tensors of a parameter's size that it keeps

    def batches(self, case: "MethodCase") -> list[Batch]:
        """Return a case's batches, all of the same microbatch."""
        inputs, targets = (torch.cat([t] * case.microbatches) for t in (self.inputs, self.targets))
        return [(inputs, targets)] * case.batches

    def profiled(self, stages: int, passes: int) -> Profile:
        """Return a profile of a microbatch, taken among as many threads as there are stages."""
        how: dict[str, Any] = {"loss": self.loss, "optimizer": self.optimizer}
        how |= {"target": self.targets, "repeats": passes, "others": stages - 1}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the layers' times add up")  # they are made to
            return profile(self.module, self.inputs, **how)

    def pipeline(self, case: "MethodCase", split: Plan, transport: str = "threads") -> Pipeline:
        """Return the pipeline that trains by a method, cut as a plan says."""
        # As workers' own processes do: else the first batch of each run would pay for what the
        # loops and profiles before it gave back.
        keep_freed_memory()
        how: dict[str, Any] = {"optimizer": self.optimizer, "loss": self.loss}
        how["transport"] = transport
        return on_cpus(self.module, case.schedule, balance=split, **how)

    def plain_loop_s(self, case: "MethodCase") -> float:
        """Return the seconds of the same training in a plain loop, beside as many as in a run."""
        module = copy.deepcopy(self.module).train()
        batches = self.batches(case)
        step = plain_step(module, batches[0], self.loss, case.microbatches, self.optimizer)
        with background_load(self.module, self.inputs, case.stages - 1):
            start = time.perf_counter()
            for _ in batches:
                step()
            return time.perf_counter() - start


@dataclass(frozen=True)
class MethodCase:
    """A row of a comparison: a name in :data:`.by_name.METHODS`, a worker a stage."""

    method: str
    stages: int
    microbatches: int  # 1 where a method updates after every minibatch
    batches: int

    @property
    def schedule(self) -> Schedule:
        """The method's schedule, without end."""
        return METHODS[self.method](self.stages, self.microbatches)

    @property
    def table(self) -> Schedule:
        """The schedule of its batches."""
        return self.schedule.take(self.batches)

    def has_the_counts_of(self, run: Run) -> bool:
        """Return whether a run had the versions and microbatches in flight of the table."""
        report = check(self.table)
        exact = report.peak_versions, report.peak_in_flight
        return bool(exact == (run.weight_slots, run.peak_in_flight))


def cases(
    methods: Iterable[str], depths: Iterable[int], microbatches: Sequence[int], batches: int
) -> list[MethodCase]:
    """Return every case that makes sense: 2BW needs as many microbatches as stages.

    A method that updates after every minibatch gets as many as the others have microbatches.
    """
    made = []
    for method in methods:
        require_choice("method", method, METHODS)
        for stages in depths:
            for m in microbatches:
                if method in PER_MINIBATCH:
                    made.append(MethodCase(method, stages, 1, m * batches))
                elif method != "2bw" or m >= stages:
                    made.append(MethodCase(method, stages, m, batches))
    return made


def trained_models() -> list[TrainedModel]:
    """Return a convolutional network, an MLP and a GPT with data, loss and optimizer."""
    digits = mnist(rows=64, test_rows=16)
    images = digits.train_inputs[:32], digits.train_targets[:32]
    torch.manual_seed(0)
    words = torch.randint(256, (8, 65))
    wide = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))
    numbers = torch.rand(64, 512), torch.rand(64, 512)
    momentum, sgd = partial(SGD, lr=0.01, momentum=0.9), partial(SGD, lr=0.01)
    language = gpt(6, 128, 4, vocabulary=256, sequence=64)
    next_words = words[:, :-1], words[:, 1:]
    return [
        TrainedModel("convnet on MNIST", convnet(), *images, nn.CrossEntropyLoss(), momentum, 1),
        TrainedModel("MLP 8 x 512", wide, *numbers, nn.MSELoss(), sgd, 0),
        TrainedModel("GPT 6 x 128", language, *next_words, token_loss, Adam, 2),
    ]


def equal_stages(costs: Profile, stages: int, recompute: Recompute = "never") -> Plan:
    """Return stages of equal time."""
    return plan(costs, flat(stages, math.inf), "balance", recompute=recompute)


def beside(predicted: float, found: float, unit: str = "s") -> dict[str, float]:
    """Return a prediction beside what was found, and its error."""
    error = predicted / found - 1
    return {f"predicted ({unit})": predicted, f"found ({unit})": found, "error": error}


def predicted(
    model: TrainedModel,
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> pd.DataFrame:
    """Predict a model's trainings before any of them is run; return a row for each.

    Numbers are medians over profiles, each between two plain loops.  Seconds "without host" are of
    the profile alone.  Stages take equal time.
    """
    stages, loop_s = cases[0].stages, partial(model.plain_loop_s, cases[0])
    split = equal_stages(model.profiled(stages, passes), stages)
    rows = []
    for _ in range(repeats):
        before, costs, after = loop_s(), model.profiled(stages, passes), loop_s()
        for transport, case in product(hosts, cases):
            seconds = {"plain loop (s)": (before + after) / 2}
            for name, host in ("predicted (s)", hosts[transport]), ("without host (s)", Host()):
                seconds[name] = simulate(case.table, costs, split, host=host).makespan_s
            rows.append(_named(model, case, transport, split) | seconds)
    groups = pd.DataFrame(rows).groupby(KEYS, sort=False)
    return groups.median().reset_index().assign(label="simulated")


def compared(
    model: TrainedModel,
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    promised: pd.DataFrame,
    repeats: int,
    passes: int,
) -> pd.DataFrame:
    """Train a model by several methods again and again, beside what was ``promised`` of it.

    A repeat is a run of each case over each transport, with a plain loop before and after; numbers
    are medians over the repeats.  A case is decided if the loops beside its runs and those beside
    its profiles differ by 3 % at most, and half of the former lie within 3 %: else the machine was
    not as fast here as there, or not steady.  Beside the loops the other cores compute, too.

    ``error without host`` is that of a prediction from the profile alone, ``error of passes`` that
    against a prediction from the seconds that the run's own passes and updates took, and ``error
    between`` that of the latter.  ``loops`` says by how much the loops beside the runs are slower,
    ``loops spread`` how far from their median half of these lie, and ``spread`` what lies between
    the quartiles of the seconds found; both over the median.
    """
    promised = promised[promised["model"] == model.name].set_index(KEYS)
    (cut,) = promised.index.unique("balance")
    split = Plan.by_hand([*map(int, cut.split("-"))], rows=len(model.inputs))
    costs, loop_s = model.profiled(cases[0].stages, passes), partial(model.plain_loop_s, cases[0])
    each = list(product(hosts, cases))
    pipelines = [model.pipeline(case, split, transport) for transport, case in each]
    for pipeline, (_, case) in zip(pipelines, each, strict=True):
        pipeline.train(model.batches(case))  # to warm up
    rows, after = [], loop_s()
    for _ in range(repeats):
        for pipeline, (transport, case) in zip(pipelines, each, strict=True):
            run = pipeline.train(model.batches(case))
            before, after = after, loop_s()
            row = _named(model, case, transport, split)
            seconds, found_s = promised.loc[tuple(row.values())], run.trace.makespan_s
            as_run, host = Costs.measured(costs, run.trace), replace(hosts[transport], pass_s=0.0)
            own_s = simulate(case.table, as_run, split, host=host).makespan_s
            row |= beside(seconds["predicted (s)"], found_s)
            row |= {
                "error without host": seconds["without host (s)"] / found_s - 1,
                "error of passes": seconds["predicted (s)"] / own_s - 1,
                "error between": own_s / found_s - 1,
                "counts agree": case.has_the_counts_of(run),
                "loops": [before, after],
            }
            rows.append(row)
    for pipeline in pipelines:
        pipeline.close()
    runs = pd.DataFrame(rows)
    groups = runs.groupby(KEYS, sort=False)
    seconds, plain_s = groups["found (s)"], promised["plain loop (s)"].median()
    loops = runs.explode("loops").astype({"loops": float}).groupby(KEYS, sort=False)["loops"]
    table = groups.median(numeric_only=True)
    table["spread"] = (seconds.quantile(0.75) - seconds.quantile(0.25)) / table["found (s)"]
    table["counts agree"] = groups["counts agree"].all()
    table["plain loop (s)"], table["loops"] = plain_s, loops.median() / plain_s - 1
    table["loops spread"] = loops.agg(lambda each: (each / each.median() - 1).abs().median())
    decided = (table[["loops", "loops spread"]].abs() <= LOOPS_WITHIN).all(axis="columns")
    table["outcome"] = decided.map({True: "decided", False: "undecided"})
    return table.reset_index().assign(label="measured")


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors of the cases that are decided, and of all: a row each.

    Mean size and signed mean of the error and of the two parts that multiply to it.
    """
    decided = table[table["outcome"] == "decided"]
    rows = []
    for name, cases in ("decided", decided), ("all", table):
        row: dict[str, Any] = {"cases": name, "count": len(cases)}
        for part in "error", "error of passes", "error between":
            row |= {part: cases[part].abs().mean(), f"{part}, signed": cases[part].mean()}
        rows.append(row | {"worst error": cases["error"].abs().max()})
    return pd.DataFrame(rows)


def _named(model: TrainedModel, case: MethodCase, transport: str, split: Plan) -> dict[str, Any]:
    balance = "-".join(map(str, split.balance))
    return {"model": model.name, **asdict(case), "transport": transport, "balance": balance}
