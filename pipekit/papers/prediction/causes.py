"""Why a prediction is off: by the passes' seconds, or by what lies between passes."""

import copy
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from pipekit.clusters import Cluster, local
from pipekit.papers.prediction.runs import (
    MethodCase,
    TrainedModel,
    by_reference,
    pipeline_of,
    profiled,
)
from pipekit.planning import plan
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.profiling.measured import profile
from pipekit.simulation import simulate
from pipekit.traces import Trace

REPEATS_WITHIN = 0.03
"""A prediction is judged where the plain loop, again and again, is so near to its median."""


def compared(
    model: TrainedModel, case: MethodCase, transport: str, repeats: int, passes: int
) -> dict[str, Any]:
    """Predict and train a case again and again, and say what of the error comes from where.

    Each repeat is a plain loop, a profile as :func:`pipekit.profile` takes it by default, a profile
    of the layers alone (no loss, no optimizer, nobody beside them), and a training by two workers.

    - ``error``: of the prediction from the first profile; ``error alone``: from the other.
    - ``error of passes``: of the prediction against one from the seconds that the run's own passes
      and updates took; ``error between``: of that one against the run.  If the first is 0, the
      profile is right, and the engine or the machine takes time between the tasks.
    - ``outcome``: "undecided" where the plain loop did not repeat within 3 %.

    Args:
        model: what is trained.
        case: by which method.
        transport: "threads" or "distributed".
        repeats: at least 1; each number is their median.
        passes: of a profile.
    """
    links = by_reference(case.stages) if transport == "threads" else local(case.stages)
    costs = profiled(model, case.stages, passes)
    split = plan(costs, links, "balance")
    pipeline = pipeline_of(model, case, split, transport)
    batches = model.batches(case.microbatches, case.batches)
    pipeline.train(batches)  # to warm up
    plain, rows = [], []
    for _ in range(repeats):
        plain.append(plain_loop_s(model, case))
        alone = profile(
            model.module, model.inputs, repeats=passes, loss=None, optimizer=None, others=0
        )
        costs = profiled(model, case.stages, passes)
        trace = pipeline.train(batches).trace
        rows.append(_errors(case, split, links, costs, alone, trace))
    pipeline.close()
    middle = statistics.median(plain)
    spread = max(abs(seconds / middle - 1) for seconds in plain)
    return {
        "model": model.name,
        "method": case.method,
        "transport": transport,
        **{key: statistics.median(row[key] for row in rows) for key in rows[0]},
        "plain loop (s)": middle,
        "plain loop's spread": spread,
        "outcome": "decided" if spread <= REPEATS_WITHIN else "undecided",
        "label": "measured",
    }


def _errors(
    case: MethodCase, split: Plan, links: Cluster, costs: Profile, alone: Profile, trace: Trace
) -> dict[str, float]:
    schedule = case.schedule(case.batches)
    predicted, from_alone = (
        simulate(schedule, each, split, links).makespan_s for each in (costs, alone)
    )
    own = simulate(schedule, as_it_ran(trace), Plan.by_hand([1] * case.stages), links).makespan_s
    found = trace.makespan_s
    return {
        "predicted (s)": predicted,
        "found (s)": found,
        "error": predicted / found - 1,
        "error alone": from_alone / found - 1,
        "error of passes": predicted / own - 1,
        "error between": own / found - 1,
    }


def as_it_ran(trace: Trace) -> Profile:
    """Return a layer for each stage that takes what its passes took on average in a run."""
    frame = trace.frame.assign(seconds=trace.frame["end_s"] - trace.frame["start_s"])
    mean = frame.groupby(["stage", "op"])["seconds"].mean()
    stages = sorted(frame["stage"].unique())
    return Profile(
        tuple(
            LayerProfile(
                f"stage {stage}",
                forward_s=float(mean[stage, "FORWARD"]),
                backward_s=float(mean[stage, "BACKWARD"]),
                update_s=float(mean.get((stage, "UPDATE"), 0.0)),
            )
            for stage in stages
        )
    )


def plain_loop_s(model: TrainedModel, case: MethodCase) -> float:
    """Return the seconds of the same training in a plain loop, by one operator thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        module = copy.deepcopy(model.module).train()
        optimizer = model.optimizer(list(module.parameters()))
        start = time.perf_counter()
        for _ in range(case.batches):
            optimizer.zero_grad()
            for _ in range(case.microbatches):
                loss = model.loss(module(model.inputs), model.targets)
                (loss / case.microbatches).backward()
            optimizer.step()
        return time.perf_counter() - start
    finally:
        torch.set_num_threads(threads)


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
