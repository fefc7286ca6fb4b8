"""Why a recorded run was slow: its method, where the time went, and what would save how much."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from pipekit.choices import require_kind
from pipekit.measured.causes import BETWEEN_STEPS, SLOW, Counterfactual, causes
from pipekit.measured.operations import operations
from pipekit.measured.recognition import recognise
from pipekit.measured.what_if import AGAIN, SHARES, WAITING, WhatIf, shares
from pipekit.traces import Trace
from pipekit.traces.record import COLUMNS
from pipekit.units import SECONDS, plural, written

_SHOWN = 4
_SMALL = 0.001  # causes that save a smaller share of a step are not printed
_ALIKE = 0.5  # nor is a slow stage beside its worker, if it saves over half as much
_TRUSTED = 0.05  # the share of a step by which a replay may differ without a note


class Explanation:
    """What :func:`explain` found; ``print`` shows it in some ten lines.

    Attributes:
        trace: the recorded one.
        recognition: the method, and its counts.
        step_s: the mean recorded step.
        simulated_s: what the recorded durations take in the method's order, with what was recorded
            between steps; no start, end or gap of the pipeline enters.
        slowdowns: :attr:`pipekit.measured.what_if.WhatIf.slowdowns`.
        shares: seconds by worker and what they went into (:mod:`pipekit.measured.what_if`).
        causes: what saves most first.
        notes: the trace's, and one if the replay differs by over 5 % of a step.
        what_if: the replay, to be asked for more.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.recognition = trace, recognise(trace)
        recorded, lasting = vars(operations(trace)), np.array([trace.makespan_s])
        if trace.steps is not None:
            lasting = (trace.steps["end_s"] - trace.steps["start_s"]).to_numpy()
        self.what_if = WhatIf(**recorded, lasting_s=lasting, steps=self.recognition.steps)
        self.step_s = float(lasting.sum()) / self.recognition.steps
        self.simulated_s, self.slowdowns = self.what_if.simulated_s, self.what_if.slowdowns
        self.notes, off = trace.notes, self.simulated_s / self.step_s - 1
        if abs(off) > _TRUSTED:
            why = "workers waited for what it lacks, say launches, weights or missing ranks"
            self.notes += (f"the replay differs by {off:+.0%}: {why}",)
        self.shares = shares(self.what_if)
        self.causes = causes(self.what_if, self.recognition)

    @property
    def mean_shares(self) -> dict[str, float]:
        """The share of each in all workers' time; the six sum to 1."""
        total = self.shares[list(SHARES)].to_numpy().sum()
        return {name: float(self.shares[name].sum() / total) for name in [*SHARES, *WAITING, AGAIN]}

    def timeline(self, cause: Counterfactual | None = None, replica: int = 0) -> Trace:
        """Return a ``replica``'s passes of the median step, as recorded or without ``cause``."""
        if cause is not None and cause.step is not None:
            return cause.step
        what_if, lasting = self.what_if, self.what_if.lasting_s
        step = np.unique(what_if.step)[np.argsort(lasting)[len(lasting) // 2]]
        here = what_if.passes & (what_if.step == step) & (what_if.replica == replica)
        frame = what_if.pass_rows[here[what_if.passes]]
        op = np.array(what_if.kinds, object)[frame["kind"]]
        frame = frame.assign(op=op, version=0, bytes=0)
        name = self.trace.name + (f", step {step}" if len(lasting) > 1 else "")
        if cause is not None and cause.seconds is not None:
            delays = None if cause.kind == BETWEEN_STEPS else what_if.between_steps
            ends = what_if.ends_s(cause.seconds[:, None], delays)[here, 0]
            frame = frame.assign(start_s=ends - cause.seconds[here], end_s=ends)
            name = f"{name} without {cause.kind}"
        frame["worker"] = pd.factorize(frame["worker"], sort=True)[0]
        frame["microbatch"] = pd.factorize(frame["microbatch"], sort=True)[0]
        frame = frame.sort_values(["worker", "start_s"], kind="stable", ignore_index=True)
        label = self.trace.label if cause is None else "simulated"
        return Trace(frame[COLUMNS], label, name, int(frame["worker"].max()) + 1)

    def record(self) -> dict[str, Any]:
        """Return everything as a JSON-able record."""
        mean = self.mean_shares
        counts = ("method", "also", "edits", "stages", "microbatches", "steps")
        told = ("kind", "where", "saves_s", "text")
        known = {name: value for name, value in self.slowdowns.items() if not np.isnan(value)}
        return {
            "format": "pipekit explanation 1",
            "name": self.trace.name,
            **{name: getattr(self.recognition, name) for name in counts},
            "workers": self.trace.workers,
            "step_s": self.step_s,
            "simulated_s": self.simulated_s,
            "ideal_s": self.slowdowns["t_ideal_s"],
            "slowdown": self.slowdowns["slowdown"],
            "m_s": known.get("m_s"),
            "m_w": known.get("m_w"),
            "shares": {name: mean[name] for name in SHARES},
            "waiting": {name: mean[name] for name in WAITING},
            AGAIN: mean[AGAIN],
            "causes": [
                {name: getattr(cause, name) for name in told}
                | {"share": cause.saves_s / self.step_s}
                for cause in self.causes
            ],
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(self.record(), indent=2, allow_nan=False) + "\n"

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        mean, step = self.mean_shares, written(self.step_s, SECONDS)
        yield f"{self.trace.name}: {self.recognition}"
        yield (
            f"{plural(self.recognition.steps, 'step')} of {step} (recorded) on "
            f"{plural(self.trace.workers, 'worker')}; replayed from durations "
            f"{written(self.simulated_s, SECONDS)} "
            f"({self.simulated_s / self.step_s - 1:+.1%})"
        )
        ideal, slowdown = self.slowdowns["t_ideal_s"], self.slowdowns["slowdown"]
        yield (
            f"Ideal (each kind of pass takes its mean, each kind of message its median): "
            f"{written(ideal, SECONDS)}; slowdown {slowdown:.2f}"
        )
        parts = [f"{mean[name]:.0%} {name.replace('_', ' ')}" for name in SHARES]
        again = f" ({mean[AGAIN]:.0%} of the time runs forwards again)" if mean[AGAIN] else ""
        yield "Workers' time: " + ", ".join(parts) + again
        waits = [f"{mean[name]:.0%} {name}" for name in WAITING if mean[name] >= 0.005]
        if waits:
            yield "They wait: " + ", ".join(waits)
        shown = list(self.distinct())[:_SHOWN]
        for cause in shown:
            yield (
                f"{cause.text}: without that, {written(cause.saves_s, SECONDS)} of {step} a "
                f"step ({cause.saves_s / self.step_s:.1%}) would be saved"
            )
        if not shown:
            yield "No cause by itself costs a thousandth of a step"
        yield from (f"Note: {note}" for note in self.notes)

    def distinct(self) -> Iterator[Counterfactual]:
        """Yield the causes that count; of a slow worker and its stage only what saves more."""
        told: list[Counterfactual] = []
        for cause in self.causes:
            again = cause.kind in SLOW and any(
                other.kind in SLOW and cause.saves_s > _ALIKE * other.saves_s for other in told
            )
            if cause.saves_s >= _SMALL * self.step_s and not again:
                told.append(cause)
                yield cause


def explain(trace: Trace) -> Explanation:
    """Say why a run took its time; of :func:`pipekit.read_trace`, or a run or simulation.

    Raises:
        TypeError: it is not a trace.
        ValueError: the trace is in slots, has no passes, or one stage, or takes no time.
    """
    require_kind("trace", trace, Trace, "run.trace or pk.read_trace(path)")
    if trace.unit != "s":
        raise ValueError(f"{trace.name} is in {trace.unit}: give a trace in seconds")
    if trace.frame["stage"].nunique() < 2:
        raise ValueError(f"{trace.name} has no pipeline: a trace of two stages or more is needed")
    if not (trace.frame["end_s"] > trace.frame["start_s"]).any():
        raise ValueError(f"{trace.name} takes no time: give its passes seconds")
    return Explanation(trace)


def compared(before: Explanation, after: Explanation) -> str:
    """Return in words what changed from ``before`` to ``after``, what changed most first."""
    change = after.step_s - before.step_s
    lines = [
        f"A step takes {after.step_s * 1e3:.4g} ms after {before.step_s * 1e3:.4g} ms: "
        f"{change / before.step_s:+.1%}"
    ]
    one, other = before.recognition, after.recognition
    for name in "method", "stages", "workers", "microbatches":
        if getattr(one, name) != getattr(other, name):
            lines.append(f"{name}: {getattr(one, name)} -> {getattr(other, name)}")
    spent = {
        name: after.mean_shares[name] * after.step_s - before.mean_shares[name] * before.step_s
        for name in SHARES
    }
    for name, seconds in sorted(spent.items(), key=lambda item: -abs(item[1])):
        if abs(seconds) >= _SMALL * before.step_s:
            lines.append(f"{name.replace('_', ' ')} a worker: {seconds * 1e3:+.4g} ms a step")
    saved = [{cause.kind: cause.saves_s for cause in each.causes} for each in (before, after)]
    for kind in dict.fromkeys([*saved[0], *saved[1]]):
        was, now = (each.get(kind, 0.0) for each in saved)
        if abs(now - was) >= _SMALL * before.step_s:
            lines.append(f"{kind} costs {now * 1e3:.4g} ms a step after {was * 1e3:.4g} ms")
    return "\n".join(lines)
