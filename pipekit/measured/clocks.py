"""One clock for all workers: messages say how far the clocks of two of them can be apart."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd

from pipekit.measured.formats.recording import Recording
from pipekit.measured.messages import RULES, between_workers

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
    messages = _messages(recording.rows)
    late = messages["end_s"] - messages["sent_s"]
    if messages.empty or (not recording.own_clocks and (late > -_TOLERATED_S).all()):
        return recording
    by = "step" if recording.own_clocks else "all"
    offset, width = {}, [0.0]
    for number, rows in messages.groupby(by):
        found = _offsets(rows.groupby(["sender", "worker"])["slack"].min().to_dict())
        offset |= {(number, worker): ahead for worker, (ahead, _) in found.items()}
        width += [within for _, within in found.values()]

    def moved(table: pd.DataFrame) -> pd.DataFrame:
        keys = zip(table["step"] if by == "step" else [0] * len(table), table["worker"])
        shift = np.array([offset.get(key, 0.0) for key in keys])
        return table.assign(start_s=table["start_s"] + shift, end_s=table["end_s"] + shift)

    notes.append(
        f"clocks of workers are aligned by messages: by up to {max(map(abs, offset.values())):.3g} "
        f"s, to within {max(width):.2g} s (estimated)"
    )
    steps = recording.steps
    if steps is not None and "worker" in steps:
        steps = moved(steps)
    return replace(recording, rows=moved(recording.rows), steps=steps)


def _messages(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the passes that receive a message, with their sender, and when it was sent.

    Spans of passes may contain the wait for their input: then their ends tell, less what such a
    pass takes at least.
    """
    table = rows[rows["kind"].isin(RULES)].reset_index(drop=True)
    table["replica"] = table.get("replica", 0)
    found = []
    for _, made, used in between_workers(table):
        sender, sent_s = (table[name].to_numpy()[made] for name in ("worker", "end_s"))
        found.append(table.take(used).assign(sender=sender, sent_s=sent_s))
    messages = pd.concat(found, ignore_index=True)
    took = messages["end_s"] - messages["start_s"]
    least = took.groupby([messages["worker"], messages["kind"]]).transform("min")
    begins = np.maximum(messages["start_s"], messages["end_s"] - least)
    return messages.assign(slack=begins - messages["sent_s"], all=0)


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
