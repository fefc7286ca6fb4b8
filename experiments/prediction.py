"""Predictions beside real runs: what is trained, and by what seconds are off and why."""

import copy
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from pipekit.choices import require_choice
from pipekit.clusters import flat
from pipekit.datasets import Batch, mnist
from pipekit.engine import Execution, Loss, OptimizerFactory, Pipeline, Run, Watch
from pipekit.host.memory import keep_freed_memory
from pipekit.models import convnet, gpt, token_loss
from pipekit.planning import plan
from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.layer_times import background_load
from pipekit.profiling.measured import profile
from pipekit.progress import progress_bar
from pipekit.schedules import Schedule, check
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from pipekit.simulation import Host, simulate
from pipekit.traces import Trace

LOOPS_WITHIN = 0.03
"""A case is decided where the plain loops beside its runs and its profiles differ by so little."""


@dataclass(frozen=True)
class TrainedModel:
    """What is trained, with one microbatch, [rows, ...].

    The optimizer keeps so many tensors of a parameter's size for each.
    """

    name: str
    module: nn.Sequential
    inputs: Tensor
    targets: Tensor
    loss: Loss
    optimizer: OptimizerFactory
    optimizer_states: int

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
        """Return the pipeline that trains by a method, cut as a plan says.

        From then on this process keeps the memory that it frees, as workers' own processes do: else
        the first batch of each run would pay for what the loops and profiles before it gave back.
        """
        keep_freed_memory()
        return Pipeline(
            self.module,
            case.schedule,
            balance=split,
            optimizer=self.optimizer,
            loss=self.loss,
            execution=Execution(devices=["cpu"] * case.stages),
            transport=transport,
        )

    def plain_loop_s(self, case: "MethodCase") -> float:
        """Return the seconds of the same training in a plain loop, beside as many as in a run."""
        module = copy.deepcopy(self.module).train()
        optimizer = self.optimizer(list(module.parameters()))
        with background_load(self.module, self.inputs, case.stages - 1):
            start = time.perf_counter()
            for _ in range(case.batches):
                optimizer.zero_grad()
                for _ in range(case.microbatches):
                    loss = self.loss(module(self.inputs), self.targets)
                    (loss / case.microbatches).backward()
                optimizer.step()
            return time.perf_counter() - start


@dataclass(frozen=True)
class MethodCase:
    """One row of a comparison: a name in :data:`.by_name.METHODS`, one worker a stage.

    A batch has 1 microbatch where a method updates after every minibatch.
    """

    method: str
    stages: int
    microbatches: int
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

    A method that updates after every minibatch has no microbatches: it gets as many minibatches as
    the others have microbatches.

    Raises:
        ValueError: a method has another name.
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


def memory_traces(
    model: TrainedModel, costs: Profile, case: MethodCase, recompute: Recompute = "never"
) -> tuple[Trace, Trace]:
    """Return a simulated and a measured trace of a case, both with their memory."""
    split, states = equal_stages(costs, case.stages, recompute), model.optimizer_states
    simulated = simulate(case.table, costs, split, optimizer_states=states)
    return simulated, model.pipeline(case, split).train(
        model.batches(case), watch=Watch(memory=True)
    ).trace


def every_split(model: TrainedModel, case: MethodCase, host: Host, repeats: int) -> pd.DataFrame:
    """Return a measured row for every cut of the model in two, the planner's choice marked.

    The planner is PipeDream's, without replication and with free links: threads of one process
    hand tensors over by reference.  The cuts take turns, so that all of them meet the machine's
    moods; seconds are medians over the repeats, and ``spread`` is what lies between the quartiles
    of those found, over their median.  ``host`` is what this one takes beside passes, over threads.
    """
    layers, rows = len(model.module), len(model.inputs)
    splits = [Plan.by_hand([n, layers - n], rows=rows) for n in range(1, layers)]
    pipelines = [model.pipeline(case, split) for split in splits]
    batches = model.batches(case)
    for pipeline in pipelines:
        pipeline.train(batches)  # to warm up
    profiles, runs = [], []
    for _ in range(repeats):
        profiles.append(model.profiled(2, passes=10))
        runs.append([pipeline.train(batches) for pipeline in pipelines])
    costs = middle(profiles)
    choice = plan(costs, flat(2, math.inf), method="pipedream", replicate=False)
    table = []
    for split, repeated in zip(splits, zip(*runs, strict=True), strict=True):
        seconds = [run.trace.makespan_s for run in repeated]
        low, found, high = np.percentile(seconds, [25, 50, 75])
        predicted = simulate(case.table, costs, split, host=host).makespan_s
        row = {"model": model.name, **asdict(case), **beside(predicted, float(found))}
        row |= {"spread": float((high - low) / found), "balance": "-".join(map(str, split.balance))}
        row |= {"counts agree": case.has_the_counts_of(repeated[-1]), "label": "measured"}
        table.append(row | {"chosen": split.balance == choice.balance})
    return pd.DataFrame(table)


def middle(profiles: Sequence[Profile]) -> Profile:
    """Return the first of several profiles of a model, with the median of all of their seconds."""
    names = [item.name for item in fields(LayerProfile) if item.name.endswith("_s")]
    layers = []
    for each in zip(*(costs.layers for costs in profiles), strict=True):
        seconds = {name: [getattr(layer, name) for layer in each] for name in names}
        medians = {name: statistics.median(s) for name, s in seconds.items() if None not in s}
        layers.append(replace(each[0], **medians))
    return replace(profiles[0], layers=tuple(layers))


def beside(predicted: float, found: float, unit: str = "s") -> dict[str, float]:
    """Return a prediction beside what was found, and its error."""
    error = predicted / found - 1
    return {f"predicted ({unit})": predicted, f"found ({unit})": found, "error": error}


def compared(
    models: Sequence[TrainedModel],
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> pd.DataFrame:
    """Predict and train models by several methods again and again; return a row for each.

    A repeat is a profile and a run of each case over each transport, with a plain loop before and
    after each of them.  A case is decided if the median of the loops beside its runs and that of
    the loops beside the profiles differ by 3 % at most: else the machine was not as fast here as
    there, and nobody could have predicted it.  Beside the loops the other cores compute, as in a
    run: a loop alone would not notice another program on these.  Numbers are medians over the
    repeats.

    - ``error``: of the prediction from the profile and what the host takes beside passes.
    - ``error without host``: of one from the profile alone.
    - ``error of passes``: of the prediction against one from the seconds that the run's own passes
      and updates took; ``error between``: of that one against the run.
    - ``loops``: by how much the loops beside the runs are slower than those beside the profiles.
    - ``outcome``: "decided" or "undecided".

    Args:
        models: what is trained, cut in stages of equal time.
        cases: by which methods, all on as many stages.
        hosts: what this one takes beside passes, by transport: "threads", "distributed".
        repeats: at least 1.
        passes: of a profile.
    """
    bar = progress_bar(models, desc="measuring", unit="model")
    rows = [row for model in bar for row in _compared(model, cases, hosts, repeats, passes)]
    return pd.DataFrame(rows)


def _compared(
    model: TrainedModel,
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> Iterable[dict[str, Any]]:
    stages, loop_s = cases[0].stages, partial(model.plain_loop_s, cases[0])
    split = equal_stages(model.profiled(stages, passes), stages)
    keys = [(transport, case) for transport in hosts for case in cases]
    pipelines = {(t, case): model.pipeline(case, split, t) for t, case in keys}
    for (_, case), pipeline in pipelines.items():
        pipeline.train(model.batches(case))  # to warm up
    beside_profiles: list[float] = []  # seconds of the loops
    beside_runs: dict[tuple[str, MethodCase], list[float]] = {key: [] for key in keys}
    found: dict[tuple[str, MethodCase], list[dict[str, float]]] = {key: [] for key in keys}
    for _ in range(repeats):
        before, costs, after = loop_s(), model.profiled(stages, passes), loop_s()
        beside_profiles += [before, after]
        for (transport, case), pipeline in pipelines.items():
            run = pipeline.train(model.batches(case))
            before, after = after, loop_s()
            beside_runs[transport, case] += [before, after]
            found[transport, case].append(_errors(case, split, hosts[transport], costs, run))
    for pipeline in pipelines.values():
        pipeline.close()
    plain_s = statistics.median(beside_profiles)
    for (transport, case), each in found.items():
        slower = statistics.median(beside_runs[transport, case]) / plain_s - 1
        yield {
            "model": model.name,
            **asdict(case),
            "transport": transport,
            **{name: statistics.median(row[name] for row in each) for name in each[0]},
            "counts agree": all(row["counts agree"] for row in each),
            "balance": "-".join(map(str, split.balance)),
            "plain loop (s)": plain_s,
            "loops": slower,
            "outcome": "decided" if abs(slower) <= LOOPS_WITHIN else "undecided",
            "label": "measured",
        }


def _errors(
    case: MethodCase, split: Plan, host: Host, costs: Profile, run: Run
) -> dict[str, float]:
    schedule, found = case.table, run.trace.makespan_s
    predicted, bare = (simulate(schedule, costs, split, host=h).makespan_s for h in (host, Host()))
    by_stage, passes = (
        Plan.by_hand([1] * case.stages, rows=costs.rows),
        as_it_ran(run.trace, costs, split),
    )
    own = simulate(schedule, passes, by_stage, host=replace(host, pass_s=0.0)).makespan_s
    return {
        **beside(predicted, found),
        "error without host": bare / found - 1,
        "error of passes": predicted / own - 1,
        "error between": own / found - 1,
        "counts agree": case.has_the_counts_of(run),
    }


def as_it_ran(trace: Trace, costs: Profile, split: Plan) -> Profile:
    """Return a layer for each stage that takes what its passes took on average in a run.

    Args:
        trace: of the run.
        costs: of the layers, which say what stages send.
        split: which layers each stage has.
    """
    frame = trace.frame.assign(seconds=trace.frame["end_s"] - trace.frame["start_s"])
    mean = frame.groupby(["stage", "op"])["seconds"].mean()
    layers = (
        LayerProfile(
            f"stage {number}",
            forward_s=float(mean[number, "FORWARD"]),
            backward_s=float(mean[number, "BACKWARD"]),
            update_s=float(mean.get((number, "UPDATE"), 0.0)),
            output_bytes=costs.boundary_bytes(stage.stop) if stage.stop < len(costs) else 0.0,
        )
        for number, stage in enumerate(split.stages)
    )
    return Profile(tuple(layers), rows=costs.rows)
