"""All methods that flush on equal workers with equal work: exact in slots, simulated, emulated.

Beside them stands what the papers say of each method: its bubble and the activations that it keeps.
F, I and W are a worker's forward and the two parts of its backward for a microbatch, B = I + W, and
FB what a forward and a backward take together; p are the workers, and m a batch's microbatches.
With ``v`` stages a worker a pass is a v-th as long, and an activation a v-th as large.  Formulas
are text, which tables print and :meth:`Setting.value` computes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from pipekit.emulation import emulate
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, check
from pipekit.schedules.methods.by_name import METHODS, stages_a_worker
from pipekit.simulation import simulate
from pipekit.traces import Trace


@dataclass(frozen=True)
class Setting:
    """What a closed form is evaluated for."""

    workers: int = 4  # p
    microbatches: int = 8  # m, of a batch
    forward: float = 1  # F, in slots
    inputs: float = 1  # I
    weights: float = 1  # W
    overlap: float = 1  # FB as a share of F + B

    @property
    def backward(self) -> float:
        """B."""
        return self.inputs + self.weights

    def value(self, formula: str) -> Any:
        """Return a formula's number, or whether a condition holds."""
        symbols = {
            "p": self.workers,
            "m": self.microbatches,
            "F": self.forward,
            "I": self.inputs,
            "W": self.weights,
            "B": self.backward,
            "FB": self.overlap * (self.forward + self.backward),
        }
        return eval(formula, {"ceil": math.ceil}, symbols)


class ClosedForm(NamedTuple):
    """The formulas of a method."""

    bubble: str  # slots that the worst worker idles in a batch
    part: str  # "makespan" or "span": of what
    activations: str  # whole microbatches' that the worst worker keeps
    holds: str  # for which settings
    paper: str  # where it is printed; "ours" if it is found here


_TWICE = "2*p - 1"
_ENOUGH = "m >= p"
_DIVIDED = "m % p == 0 and m > p"
_SHORT = "W <= min(F, I) and m >= p"
_FLUSH = "(p - 1) * (F + B)"
_HALF = "(p - 1) * (F + B) / 2"
_DEEPSEEK = "ours; DeepSeek prints (p/2-1)(F&B+B-3W)"
_BETWEEN = "W <= I <= F and m >= 2*p"

FORMS: Mapping[str, ClosedForm] = {
    "gpipe": ClosedForm(_FLUSH, "makespan", "m", "m > 0", "GPipe 3.2"),
    "flush": ClosedForm(_FLUSH, "makespan", "p", _ENOUGH, "PipeDream-2BW 3.2"),
    "eager": ClosedForm(_FLUSH, "makespan", _TWICE, f"m >= {_TWICE}", "ours"),
    "interleaved": ClosedForm(
        _HALF, "makespan", "p + (p - 1) / 2", _DIVIDED, "Megatron-LM (SC '21) 2.2"
    ),
    "gis": ClosedForm(_HALF, "makespan", "p", _DIVIDED, "PipeOffload"),
    "looped-bfs": ClosedForm(_HALF, "makespan", "m", _ENOUGH, "Lamy-Poirier (MLSys '23)"),
    "hanayo": ClosedForm("(p - 1) * max(F, B)", "makespan", "p", "m == p", "ours"),
    "zb-h1": ClosedForm("(p - 1) * (F + I - W)", "makespan", "p", _SHORT, "Zero Bubble 2.1"),
    "zb-h2": ClosedForm(
        "(p - 1) * (F + I - 2*W)",
        "span",
        _TWICE,
        f"W <= F and 2*W <= F + I and m >= {_TWICE}",
        "Zero Bubble 2.2",
    ),
    "interleaved-zero-bubble": ClosedForm(
        "(p - 1) * (F + I - W) / 2", "makespan", "p", f"{_SHORT} and m % p == 0", "ours"
    ),
    "zb-v": ClosedForm("0", "span", "p", f"F == I == W and m >= {_TWICE}", "Zero Bubble 6"),
    "chimera": ClosedForm(
        "(p - 2) * B", "makespan", "p", "m == p and F <= B <= 2*F", "Chimera 3.1"
    ),
    "dualpipe": ClosedForm("(p/2 - 1) * (FB + F - 2*W)", "makespan", "p + 1", _BETWEEN, _DEEPSEEK),
    "dualpipe-v": ClosedForm(
        "(p - 1) * (FB + F - 2*W) / 2", "makespan", "p + 1/2", _BETWEEN, "ours"
    ),
}
"""By the names of :data:`pipekit.schedules.methods.by_name.METHODS`, with two stages a worker."""

ACTIVATIONS: Mapping[str, str] = {
    "gis-h": "(p + ceil(3*p / (3*p // ceil(p/2)))) / 2",
    "v-half": "(p + 2) // 2 if p > 1 else 1",
    "v-min": "(p + 4) // 3",
}
"""Of those whose bubble has no closed form: whole microbatches' activations of p workers, for 3 p
microbatches."""

NAMES = (*FORMS, *ACTIVATIONS)


def schedule(name: str, setting: Setting) -> Schedule:
    return METHODS[name](workers=setting.workers, microbatches=setting.microbatches)


def drawn(name: str, setting: Setting, batches: int = 1) -> Trace:
    """Return a method's timeline in slots, each pass as long as its part of the worker's work."""
    made = schedule(name, setting).take(batches)
    overlap = setting.overlap if made.overlaps else None
    return Trace.from_schedule(made, _durations(name, setting), overlap)


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
