"""Messages that were not recorded, and the waits for them that spans contain.

A pass begins when its worker is free and its input is there.  Such a span begins when the worker is
free, and nobody recorded when the message came.  But a pass whose input was sent long before shows
how long it takes, and one whose worker was free first also how long its message does.  Messages of
a link take the time, in both directions, with which passes of one kind and stage vary least beside
the length of their microbatches.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured.messages import (
    PASSES,
    Numbers,
    among,
    before_in_stream,
    between_workers,
    packed,
)

Times = NDArray[np.float64]

# If more than this share of passes begin clearly before their input is sent, spans contain waits.
_WITH_WAITS, _CLEARLY = 0.05, 0.1  # of passes, and of the pass
# A pass waited for its message if its worker idled for over this share of the message's time.
_WAITED = 0.5
_ROUNDS = 3  # lengths of microbatches and times of messages depend on one another
_TRIED = 33
_UNLIKE = 8.0  # how much likelier (its logarithm) it must be that a link is not like the others


def lengths(relative: pd.Series, microbatch: Numbers) -> pd.Series:
    """Return for each pass how long its microbatch is, by how long passes take; 1 on the average.

    The share of the variance between microbatches says how much of a microbatch's mean to believe.
    """
    groups = relative.groupby(microbatch)
    mean, count = groups.transform("mean"), groups.transform("size")
    within = float(((relative - mean) ** 2).sum() / max(1, len(relative) - groups.ngroups))
    between = float((mean - 1).pow(2).mean())
    return 1 + (mean - 1) * np.clip(1 - within / count / max(between, 1e-300), 0, 1)


def with_messages(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each message between two workers, in the order of its link.

    None is under way before its pass has ended, nor before the one in front of it was used at the
    latest.  Where spans contain the waits for messages, they are taken off.
    """
    worker, start, end = (table[name].to_numpy() for name in ("worker", "start_s", "end_s"))
    ways = [
        pd.DataFrame({"kind": payload.value, "payload": number, "made": made, "used": used})
        for number, (payload, made, used) in enumerate(between_workers(table))
    ]
    sent = pd.concat(ways, ignore_index=True)
    a, b = worker[sent["made"]], worker[sent["used"]]
    sent["sent_s"] = end[sent["made"]]
    sent["way"] = packed(sent["payload"], a, b)
    sent["lane"] = packed(table["step"].to_numpy()[sent["made"]], sent["way"])
    sent["link"] = packed(np.minimum(a, b), np.maximum(a, b))
    sent = sent.sort_values(["lane", "sent_s"], kind="stable", ignore_index=True)
    sent["number"] = sent.groupby("lane").cumcount()
    made, used = sent["made"].to_numpy(), sent["used"].to_numpy()
    early = end[made] - start[used] > _CLEARLY * (end[used] - start[used])
    if (pd.Series(early).groupby(sent["payload"]).mean() > _WITH_WAITS).any():
        begins, seconds = _taken_off(table, sent)
        table = table.assign(start_s=begins)
    else:
        seconds = _seen(table, sent)
    message = table.take(made).assign(
        kind=sent["kind"].array,
        moves=True,
        lane=int(table["lane"].max()) + 1 + sent["lane"].to_numpy(),
        start_s=sent["sent_s"].to_numpy(),
        end_s=sent["sent_s"].to_numpy() + seconds,
    )
    return pd.concat([table, message], ignore_index=True)


def _seen(table: pd.DataFrame, sent: pd.DataFrame) -> Times:
    """Return the median of what messages at a place took where a worker idled until they came."""
    start, end = table["start_s"].to_numpy(), np.append(table["end_s"].to_numpy(), 0.0)
    made, used = sent["made"].to_numpy(), sent["used"].to_numpy()
    in_front = pd.Series(start[used]).groupby(sent["lane"]).shift()
    since = np.maximum(start[used] - np.fmax(end[made], in_front.to_numpy()), 0.0)
    idle_from = end[before_in_stream(table)]
    waited = np.minimum(start[used] - idle_from[used], since) > _WAITED * since
    taken = pd.Series(np.where(waited, since, np.nan))
    places = (table[name].to_numpy()[made] for name in ("replica", "stage", "microbatch"))
    usual, of_link = (
        taken.groupby(each).transform("median")
        for each in (packed(sent["way"], *places), sent["way"])
    )
    return np.asarray(np.fmin(usual, of_link).fillna(taken.median()).fillna(0.0))


def _taken_off(table: pd.DataFrame, sent: pd.DataFrame) -> tuple[Times, Times]:
    """Return when each operation of a table begins without its wait, and each message's seconds.

    Of each message there are the row of the pass that uses it, its link, its lane and number on its
    way, and sent_s.
    """
    start, end = (table[name].to_numpy() for name in ("start_s", "end_s"))
    passes = among(table["kind"], PASSES)
    own = packed(table["worker"], table["stage"], table["kind"].cat.codes)
    microbatch = packed(*(table[name] for name in ("step", "replica", "microbatch")))[passes]
    begins, length, seconds = start.copy(), np.ones(len(table)), np.zeros(len(sent))

    def begin_s(here: pd.DataFrame, tried: Times) -> Times:
        """When the worker is free and the message there, which follows those in front of it."""
        number = here["number"].to_numpy()[:, None]
        leaves = pd.DataFrame(here["sent_s"].to_numpy()[:, None] - number * tried)
        comes = leaves.groupby(here["lane"].to_numpy()).cummax() + (number + 1) * tried
        return np.asarray(np.maximum(comes.to_numpy(), start[here["used"], None]))

    def spread(here: pd.DataFrame, tried: Times) -> Times:
        used = here["used"].to_numpy()
        took = pd.DataFrame((end[used, None] - begin_s(here, tried)) / length[used, None])
        off = (took - took.groupby(own[used]).transform("median")).abs() - took.clip(upper=0.0)
        return np.asarray(off.div(usual[used], axis=0).sum())

    most = 1.5 * float(np.median(end[sent["used"]] - begin_s(sent, np.zeros(1))[:, 0]))
    for _ in range(_ROUNDS):
        took = pd.Series(end - begins)
        usual = took.groupby(own).transform("median").clip(lower=1e-9).to_numpy()
        common = _least(partial(spread, sent), most)
        for _, here in sent.groupby("link"):
            alone = _least(partial(spread, here), most)
            alike, unlike = np.maximum(spread(here, np.array([common, alone])), 1e-12)
            likelier = len(here) * np.log(alike / unlike)
            seconds[here.index] = alone if likelier > _UNLIKE else common
        begins[sent["used"]] = np.minimum(begin_s(sent, seconds[:, None])[:, 0], end[sent["used"]])
        took = pd.Series(end - begins)[passes]
        relative = (took / took.groupby(own[passes]).transform("mean")).fillna(1.0)
        length[passes] = lengths(relative, microbatch).clip(lower=0.01)
    return begins, seconds


def _least(cost: Callable[[Times], Times], most: float) -> float:
    """Return where between 0 and ``most`` a cost is least; the first place of several."""
    best, width = most / 2, most / 2
    for _ in range(2):
        tried = np.linspace(max(0.0, best - width), best + width, _TRIED)
        best, width = float(tried[np.argmin(cost(tried))]), 2 * width / (_TRIED - 1)
    return best
