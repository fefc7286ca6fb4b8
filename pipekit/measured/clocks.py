"""One clock for all workers: messages say how far the clocks of two of them can be apart."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd

from pipekit.measured.formats.recording import Recording
from pipekit.measured.messages import Numbers, between_workers

_TOLERATED_S = 1e-4
"""Passes that begin this much before their input was sent are within a clock's own noise."""

Slack = dict[tuple[int, int], float]
"""By sender and receiver, how long after a message was sent it was used, at least."""


def aligned(recording: Recording, notes: list[str]) -> Recording:
    """Return a recording on the clock of the first worker, and note what was estimated.

    No pass begins before its input is sent.  So messages to a worker say how much its clock is at
    most ahead, and those back how much it is at most behind; the middle is taken, as if messages
    took equally long both ways, and half of the width is the uncertainty.  A recording on one clock
    is left alone, unless a pass ends before its input was sent.
    """
    passes = recording.passes.assign(replica=recording.passes.get("replica", 0))
    sent = [(made, used) for _, made, used in between_workers(passes)]
    made, used = map(np.concatenate, zip(*sent, strict=True))
    end = passes["end_s"].to_numpy()
    if not recording.own_clocks and (end[used] - end[made] > -_TOLERATED_S).all():
        return recording
    messages = _slack(passes, made, used)
    by = "step" if recording.own_clocks else "all"
    offset: dict[tuple[int, int], float] = {}
    width = [0.0]
    for number, rows in messages.groupby(by):
        found = _offsets(rows.groupby(["sender", "worker"])["slack"].min().to_dict())
        offset |= {(number, worker): ahead for worker, (ahead, _) in found.items()}
        width += [within for _, within in found.values()]

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        numbers = table["step"] if by == "step" else [0] * len(table)
        keys = zip(numbers, table["worker"], strict=True)
        shift = np.array([offset.get(key, 0.0) for key in keys])
        return table.assign(start_s=table["start_s"] + shift, end_s=table["end_s"] + shift)

    most = max(map(abs, offset.values()), default=0.0)
    notes.append(
        f"clocks of workers are aligned by messages: by up to {most:.3g} s, to within "
        f"{max(width):.2g} s (estimated)"
    )
    steps = recording.steps
    if steps is not None and "worker" in steps:
        steps = moved(steps)
    return replace(recording, rows=moved(recording.rows), steps=steps)


def _slack(passes: pd.DataFrame, made: Numbers, used: Numbers) -> pd.DataFrame:
    """Return by message its step, its workers, and how long after it was sent it was used at least.

    Spans of passes may contain the wait for their input: then their ends tell, less what such a
    pass takes at least.
    """
    rows, end = passes.take(used), passes["end_s"].to_numpy()
    took = rows["end_s"] - rows["start_s"]
    least = took.groupby([rows["worker"], rows["kind"]]).transform("min")
    begins = np.maximum(rows["start_s"], rows["end_s"] - least)
    sender = passes["worker"].to_numpy()[made]
    return rows.assign(slack=begins.to_numpy() - end[made], sender=sender, all=0)


def _offsets(slack: Slack) -> dict[int, tuple[float, float]]:
    """Return what to add to each worker's times, from the first worker on, and how sure that is."""
    beside: dict[int, set[int]] = defaultdict(set)
    for one, other in slack:
        if (other, one) in slack:
            beside[one].add(other)
    found: dict[int, tuple[float, float]] = {}
    for first in sorted(beside):
        if first in found:
            continue
        found[first], waiting = (0.0, 0.0), [first]
        while waiting:
            here = waiting.pop()
            for there in sorted(beside[here] - set(found)):
                ahead, behind = slack[here, there], slack[there, here]
                offset, width = found[here]
                found[there] = offset + (behind - ahead) / 2, width + abs(ahead + behind) / 2
                waiting.append(there)
    return found
