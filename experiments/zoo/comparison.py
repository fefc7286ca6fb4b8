"""All methods that flush on equal workers with equal work: exact in slots, simulated, emulated."""

from collections.abc import Iterable

import pandas as pd

from experiments.zoo.closed_forms import ACTIVATIONS, FORMS, Setting
from pipekit.emulation import emulate
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, check
from pipekit.schedules.methods.by_name import METHODS, stages_a_worker
from pipekit.simulation import simulate
from pipekit.traces import Trace

NAMES = (*FORMS, *ACTIVATIONS)


def schedule(name: str, setting: Setting) -> Schedule:
    return METHODS[name](workers=setting.workers, microbatches=setting.microbatches)


def drawn(name: str, setting: Setting, batches: int = 1) -> Trace:
    """Return a method's timeline in slots, each pass as long as its part of the worker's work."""
    made = schedule(name, setting).take(batches)
    return Trace.from_schedule(made, _durations(name, setting), _overlap(made, setting))


def idle(name: str, setting: Setting) -> dict[str, float]:
    """Return the slots that the worst worker idles in a batch, of the makespan and of its span."""
    frame = drawn(name, setting).frame
    own = frame.assign(busy=frame["end_s"] - frame["start_s"]).groupby("worker")
    first, last, busy = own["start_s"].min(), own["end_s"].max(), own["busy"].sum()
    return {"makespan": last.max() - busy.min(), "span": (last - first - busy).max()}


def activations(name: str, setting: Setting) -> float:
    """Return the most activations that a worker keeps, in those of a whole microbatch there."""
    return max(check(schedule(name, setting).take(1)).peak_in_flight) / stages_a_worker(name)


def table(setting: Setting, batches: int = 4, names: Iterable[str] = NAMES) -> pd.DataFrame:
    """Return a row a method: its closed form, if it holds, beside the slots; bubbles, memory.

    Bubbles are of ``batches`` batches, in percent; all is exact.
    """
    rows = []
    for name in names:
        form = FORMS.get(name)
        holds = form is not None and setting.value(form.holds)
        one, made = idle(name, setting), schedule(name, setting).take(1)
        bubbles = 100 * drawn(name, setting, batches).bubbles().loc["all"]
        stages = max(len({task.stage for task in tasks}) for tasks in made.workers)
        part = form.part if form else "span"
        rows.append(
            {
                "method": made.name,
                "bubble of the worst worker": form.bubble if form else "no closed form",
                "of": part,
                "where it holds": form.holds if form else "",
                "closed form (slots)": setting.value(form.bubble) if form and holds else None,
                "exact (slots)": one[part],
                "makespan, %": bubbles["makespan"],
                "spans, %": bubbles["span"],
                "steady, %": bubbles["steady"],
                "activations (microbatches)": activations(name, setting),
                "weight versions": max(check(made).peak_versions) // stages,
            }
        )
    return pd.DataFrame(rows)


def seconds(
    setting: Setting, slot_s: float, batches: int = 2, names: Iterable[str] = NAMES
) -> pd.DataFrame:
    """Return seconds of each method, overlapped tasks in turn, and their speed over Flush's."""
    rows = []
    for name in names:
        made, costs = schedule(name, setting).take(batches), _profile(name, setting, slot_s)
        both = simulate(made, costs), emulate(made, costs).trace
        rows.append((made.name, *(trace.makespan_s for trace in both)))
    frame = pd.DataFrame(rows, columns=["method", "simulated (s)", "emulated (s)"])
    frame["emulated / simulated"] = frame["emulated (s)"] / frame["simulated (s)"]
    flush = frame["method"] == "PipeDream-Flush"
    if flush.any():
        for label in ("simulated", "emulated"):
            column = frame[f"{label} (s)"]
            frame[f"gain over Flush, % ({label})"] = 100 * (column[flush].item() / column - 1)
    return frame


def validated(
    setting: Setting,
    slot_s: float,
    batches: int = 4,
    names: Iterable[str] = ("flush", "zb-h1", "zb-h2", "zb-v"),
) -> pd.DataFrame:
    """Return what a global stop before each update costs, and validating it later instead.

    What validates later is simulated alone: the engine stops.
    """
    rows = []
    for name in names:
        made, costs = schedule(name, setting).take(batches), _profile(name, setting, slot_s)
        for validate in (None, "first", "later"):
            simulated = simulate(made, costs, validate=validate)
            run = None if validate == "later" else emulate(made, costs, validate=validate).trace
            rows.append(
                {
                    "method": made.name,
                    "validate": validate or "nothing",
                    "simulated (s)": simulated.makespan_s,
                    "emulated (s)": run and run.makespan_s,
                    "steady bubble, % (simulated)": _steady(simulated),
                    "steady bubble, % (emulated)": run and _steady(run),
                }
            )
    return pd.DataFrame(rows)


def _steady(trace: Trace) -> float:
    return 100 * float(trace.bubbles().loc["all", "steady"])


def _durations(name: str, setting: Setting) -> dict[Op, float]:
    parts = stages_a_worker(name)
    return {
        Op.FORWARD: setting.forward / parts,
        Op.BACKWARD: setting.backward / parts,
        Op.BACKWARD_INPUT: setting.inputs / parts,
        Op.BACKWARD_WEIGHT: setting.weights / parts,
        Op.UPDATE: 0,
    }


def _overlap(made: Schedule, setting: Setting) -> float | None:
    return setting.overlap if made.overlaps else None


def _profile(name: str, setting: Setting, slot_s: float) -> Profile:
    parts = stages_a_worker(name)
    layer = LayerProfile(
        "stage",
        forward_s=setting.forward * slot_s / parts,
        backward_s=setting.backward * slot_s / parts,
        backward_input_s=setting.inputs * slot_s / parts,
        backward_weight_s=setting.weights * slot_s / parts,
        output_bytes=64,
    )
    return Profile((layer,) * (setting.workers * parts), input_bytes=64)
