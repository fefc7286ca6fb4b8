"""One clock for all workers: messages say how far the clocks of two of them can be apart."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd

from pipekit.measured.messages import between_workers
from pipekit.measured.recording import Recording

_TOLERATED_S = 1e-4
"""Passes that begin this much before their input was sent are within a clock's own noise."""


def aligned(recording: Recording) -> tuple[Recording, list[str]]:
    """Return a recording on the clock of the first worker, and what was estimated.

    No pass begins before its input is sent.  So messages to a worker say how much its clock is at
    most ahead, and those back how much it is at most behind; the middle is taken, as if messages
    took equally long both ways, and half of the width is the uncertainty.  A recording on one clock
    is left alone, unless a pass ends before its input was sent.

    Returns:
        The recording, with its times changed; and a sentence if they were.
    """
    frame = recording.frame.copy()
    messages = _messages(frame)
    if messages.empty:
        return recording, []
    late = messages["end_s"] - messages["sent_s"]
    if not recording.own_clocks and (late > -_TOLERATED_S).all():
        return recording, []
    by = ["step"] if recording.own_clocks else []
    slack = _slack(messages, by)
    steps = None if recording.steps is None else recording.steps.copy()
    timed = [frame, *([steps] if steps is not None and "worker" in steps else [])]
    worst, most = 0.0, 0.0
    for number in frame["step"].unique() if by else [0]:
        offset, width = _offsets({k[1:]: v for k, v in slack.items() if k[0] == number})
        for table in timed:
            rows = table["step"] == number if by else slice(None)
            shift = table.loc[rows, "worker"].map(offset).fillna(0.0).to_numpy()[:, None]
            table.loc[rows, ["start_s", "end_s"]] += shift
        worst, most = max([worst, *width.values()]), max([most, *map(abs, offset.values())])
    return replace(recording, frame=frame, steps=steps), [
        f"clocks of workers are aligned by messages: by up to {most:.3g} s, to within "
        f"{worst:.2g} s (estimated)"
    ]


def _messages(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the passes that receive a message, with the worker that sent it, and when."""
    table = frame.rename(columns={"op": "kind"}).reset_index(drop=True)
    table["replica"] = table.get("replica", 0)
    found = []
    for _, made, used in between_workers(table):
        sent = table.loc[made, ["worker", "end_s"]].to_numpy()
        found.append(table.loc[used].assign(sender=sent[:, 0].astype(int), sent_s=sent[:, 1]))
    return pd.concat(found, ignore_index=True)


def _slack(messages: pd.DataFrame, by: list[str]) -> dict[tuple[int, int, int], float]:
    """Return by step, sender and receiver how long after a message was sent it was used, at least.

    Spans of passes may contain the wait for their input: then their ends tell, less what such a
    pass takes at least.
    """
    took = messages["end_s"] - messages["start_s"]
    least = took.groupby([messages["worker"], messages["kind"]]).transform("min")
    begins = np.maximum(messages["start_s"], messages["end_s"] - least)
    frame = messages.assign(slack=begins - messages["sent_s"], number=0)
    found = frame.groupby([*(by or ["number"]), "sender", "worker"])["slack"].min()
    return {key: float(value) for key, value in found.items()}


def _offsets(
    slack: dict[tuple[int, int], float],
) -> tuple[dict[int, float], dict[int, float]]:
    """Return what to add to each worker's times, from the first worker on, and how sure that is."""
    beside: dict[int, set[int]] = defaultdict(set)
    for one, other in slack:
        if (other, one) in slack:
            beside[one].add(other)
    offset: dict[int, float] = {}
    width: dict[int, float] = {}
    for first in sorted(beside):
        if first in offset:
            continue
        offset[first], width[first], waiting = 0.0, 0.0, [first]
        while waiting:
            here = waiting.pop()
            for there in sorted(beside[here] - set(offset)):
                ahead, behind = slack[here, there], slack[there, here]
                offset[there] = offset[here] + (behind - ahead) / 2
                width[there] = width[here] + abs(ahead + behind) / 2
                waiting.append(there)
    return offset, width
