"""Predictions beside real runs, and why one is off: by its passes, or by what lies between them."""

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from experiments.prediction.runs import (
    MethodCase,
    TrainedModel,
    as_scheduled,
    pipeline_of,
    profiled,
)
from pipekit.clusters import flat
from pipekit.engine import Run
from pipekit.planning import plan
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.layer_times import background_load
from pipekit.simulation import simulate
from pipekit.simulation.one_host import Host
from pipekit.traces import Trace

LOOPS_WITHIN = 0.03
"""A case is decided where the plain loops beside its runs and its profiles differ by so little."""


def compared(
    model: TrainedModel,
    cases: Sequence[MethodCase],
    hosts: Mapping[str, Host],
    repeats: int,
    passes: int,
) -> list[dict[str, Any]]:
    """Predict and train a model by several methods again and again; return a row for each.

    A repeat is a profile and a run of each case over each transport, with a plain loop before and
    after each of them.  A case is decided if the median of the loops beside its runs and that of
    the loops beside the profiles differ by 3 % at most: else the machine was not as fast here as
    there, and nobody could have predicted it.  Beside the loops the other cores are at work, as in
    a run: a loop alone would not notice another program on these.  Numbers are medians over the
    repeats.

    - ``error``: of the prediction from the profile and what the host takes beside passes.
    - ``error without host``: of one from the profile alone.
    - ``error of passes``: of the prediction against one from the seconds that the run's own passes
      and updates took; ``error between``: of that one against the run.
    - ``loops``: by how much the loops beside the runs are slower than those beside the profiles.
    - ``outcome``: "decided" or "undecided".

    Args:
        model: what is trained, cut in stages of equal time.
        cases: by which methods, all on as many stages.
        hosts: what this one takes beside passes, by transport: "threads", "distributed".
        repeats: at least 1.
        passes: of a profile.
    """
    stages = cases[0].stages
    split = plan(profiled(model, stages, passes), flat(stages, float("inf")), "balance")
    batches = {case: model.batches(case.microbatches, case.batches) for case in cases}
    pipelines = {
        (transport, case): pipeline_of(model, case, split, transport)
        for transport in hosts
        for case in cases
    }
    for (_, case), pipeline in pipelines.items():
        pipeline.train(batches[case])  # to warm up
    profiles: list[float] = []  # seconds of the loops beside them
    runs: dict[tuple[str, MethodCase], list[float]] = {key: [] for key in pipelines}
    found: dict[tuple[str, MethodCase], list[dict[str, float]]] = {key: [] for key in pipelines}
    for _ in range(repeats):
        before, costs = plain_loop_s(model, cases[0]), profiled(model, stages, passes)
        after = plain_loop_s(model, cases[0])
        profiles += [before, after]
        for (transport, case), pipeline in pipelines.items():
            run = pipeline.train(batches[case])
            before, after = after, plain_loop_s(model, cases[0])
            runs[transport, case] += [before, after]
            found[transport, case].append(_errors(case, split, hosts[transport], costs, run))
    for pipeline in pipelines.values():
        pipeline.close()
    rows = []
    for (transport, case), each in found.items():
        slower = statistics.median(runs[transport, case]) / statistics.median(profiles) - 1
        rows.append(
            {
                "model": model.name,
                **asdict(case),
                "transport": transport,
                **{name: statistics.median(row[name] for row in each) for name in each[0]},
                "counts agree": all(row["counts agree"] for row in each),
                "balance": "-".join(map(str, split.balance)),
                "plain loop (s)": statistics.median(profiles),
                "loops": slower,
                "outcome": "decided" if abs(slower) <= LOOPS_WITHIN else "undecided",
                "label": "measured",
            }
        )
    return rows


def _errors(
    case: MethodCase, split: Plan, host: Host, costs: Profile, run: Run
) -> dict[str, float]:
    schedule, trace = case.table, run.trace
    predicted, bare = (simulate(schedule, costs, split, host=h).makespan_s for h in (host, Host()))
    hand_made = Plan.by_hand([1] * case.stages, rows=costs.rows)
    passes = as_it_ran(trace, costs, split)
    own = simulate(schedule, passes, hand_made, host=replace(host, pass_s=0.0)).makespan_s
    found = trace.makespan_s
    return {
        "predicted (s)": predicted,
        "found (s)": found,
        "error": predicted / found - 1,
        "error without host": bare / found - 1,
        "error of passes": predicted / own - 1,
        "error between": own / found - 1,
        "counts agree": as_scheduled(split, schedule, run)["counts agree"],
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


def plain_loop_s(model: TrainedModel, case: MethodCase) -> float:
    """Return the seconds of the same training in a plain loop, beside as many as in a run."""
    module = copy.deepcopy(model.module).train()
    optimizer = model.optimizer(list(module.parameters()))
    with background_load(model.module, model.inputs, case.stages - 1):
        start = time.perf_counter()
        for _ in range(case.batches):
            optimizer.zero_grad()
            for _ in range(case.microbatches):
                loss = model.loss(module(model.inputs), model.targets)
                (loss / case.microbatches).backward()
            optimizer.step()
        return time.perf_counter() - start


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean and the worst error of the cases that are decided, in a sentence."""
    decided = [abs(row["error"]) for row in rows if row["outcome"] == "decided"]
    counts = f"{len(decided)} of {len(rows)} cases are decided"
    if not decided:
        return f"{counts}: the machine was not quiet"
    return (
        f"{counts}; seconds are predicted within {sum(decided) / len(decided):.1%} on average and "
        f"{max(decided):.1%} at most (measured)"
    )
