"""The last level: a trace of the engine with one slow worker, and questions about it.

``python -m pipekit.explore.puzzles.diagnosis`` records the trace anew.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.explore.browser.picture import explained, picture
from pipekit.host.provenance import provenance
from pipekit.measured import explain
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import flush
from pipekit.traces import Trace

RECORD = Path(__file__).with_name("slow_worker.json")
WORKERS, MICROBATCHES = 4, 8
FORWARD_S, BACKWARD_S = 0.02, 0.04
STEPS = 20
SLOWNESS = 1.0, 1.0, 1.5, 1.0  # how many times as long each worker takes
CAUSES = 4  # to choose among


def record() -> None:
    """Run the engine with modelled compute, one worker slower than the others; write its trace."""
    from pipekit.emulation import emulate  # here, since torch takes seconds

    layers = (LayerProfile("", each * FORWARD_S, each * BACKWARD_S) for each in SLOWNESS)
    step, costs = flush(WORKERS, MICROBATCHES).take(1), Profile(tuple(layers))
    # Other work on the machine makes a step longer, never shorter.
    trace = min((emulate(step, costs).trace for _ in range(STEPS)), key=lambda t: t.makespan_s)
    told = provenance("emulated", slowness=SLOWNESS, shortest_of=STEPS)
    kept = {"provenance": told, "events": trace.frame.round(6).to_dict("list")}
    RECORD.write_text(json.dumps(kept) + "\n", encoding="utf-8")


def recorded() -> tuple[Trace, dict[str, Any]]:
    """Return the trace that is kept, and its provenance."""
    kept = json.loads(RECORD.read_text(encoding="utf-8"))
    frame, told = pd.DataFrame(kept["events"]), kept["provenance"]
    return Trace(frame, told["label"], "1F1B with one slow worker", WORKERS), told


def level() -> dict[str, Any]:
    """Return the level: the picture, the questions and their answers."""
    trace, told = recorded()
    return {
        "shown": {"picture": picture(trace), "why": explained(trace)},
        "goal": "A step of 1F1B on four workers took longer than planned. Click a gap to see who "
        "waits for whom; comma and full stop step through the run.",
        "provenance": f"The engine's own trace, compute modelled ({told['label']}), recorded "
        f"{told['utc'][:10]}: the shortest of {told['shortest_of']} steps.",
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


if __name__ == "__main__":
    record()
