"""The last level: a run in which one stage is heavy, and questions about it."""

from typing import Any

import numpy as np

from pipekit.clusters import flat
from pipekit.explore.browser.picture import explained, picture
from pipekit.measured import explain
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import flush
from pipekit.simulation import Costs, simulate
from pipekit.traces import Trace

CAUSES = 4  # to choose among


def slow_run() -> Trace:
    """Return a simulated step with a heavy stage and microbatches of unequal length."""
    schedule = flush(4, 8).take(1)
    chance = np.random.default_rng(0)
    lengths = dict(enumerate(chance.uniform(0.7, 1.3, schedule.microbatches)))
    layers = [LayerProfile("", 0.01 * x, 0.02 * x, output_bytes=4e6) for x in (1, 1.4, 1, 1)]
    costs = Costs(Profile(tuple(layers)), microbatches=lengths)
    return simulate(schedule, costs, cluster=flat(4, 3e9))


def level() -> dict[str, Any]:
    """Return the level: the picture, the questions and their answers."""
    trace = slow_run()
    return {
        "shown": {"picture": picture(trace), "why": explained(trace)},
        "goal": "A step of 1F1B on four workers took longer than planned. Click a gap to see who "
        "waits for whom; comma and full stop step through the run.",
        "provenance": "A simulated run, whose costs are not told.",
        "questions": [_who(trace), _cause(trace)],
        "teaches": "The slow worker is the one that hardly waits: those before it wait for "
        "gradients, those behind it for activations. Of your own run, pk.explain says the same.",
    }


def _who(trace: Trace) -> dict[str, Any]:
    forwards, gaps = trace.frame[trace.frame["op"] == "FORWARD"], trace.gaps()
    seconds = forwards["end_s"] - forwards["start_s"]
    took = seconds.groupby(forwards["worker"]).median().tolist()
    idle = (gaps["end_s"] - gaps["start_s"]).groupby(gaps["worker"]).sum()
    slow = took.index(max(took))
    answers = []
    for worker, each in enumerate(took):
        facts = (
            f"Worker {worker} takes {1e3 * each:.1f} ms for a forward at the median, and idles "
            f"{1e3 * idle.get(worker, 0.0):.0f} ms in all"
        )
        rest = "." if worker == slow else f"; the slow one takes {1e3 * took[slow]:.1f} ms."
        answers.append({"text": f"worker {worker}", "says": facts + rest, "right": worker == slow})
    return {"text": "Which worker is slow?", "answers": answers}


def _cause(trace: Trace) -> dict[str, Any]:
    found = explain(trace)
    answers = [
        {
            "text": cause.kind,
            "says": f"{cause.text}: without that, a step would take {1e3 * cause.saves_s:.0f} ms "
            f"less of {1e3 * found.step_s:.0f} ms (simulated).",
            "right": cause is found.causes[0],
        }
        for cause in sorted(found.causes[:CAUSES], key=lambda cause: cause.kind)
    ]
    return {"text": "What costs the step most?", "answers": answers}
