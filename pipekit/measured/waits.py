"""Messages that were not recorded, the waits for them that spans contain, and workers' clocks.

A pass begins when its worker is free and its input is there.  Where spans begin when the worker is
free, nobody recorded when the message came.  But a pass whose input was sent long before shows how
long it takes, and one whose worker was free first also how long its message does, if clocks agree;
if they do not, messages one way take so much more as those the other way take less.  So the seconds
of messages and what clocks are ahead are fitted at once: they are those with which passes of one
kind and stage vary least beside the length of their microbatches.

If nearly all passes of one kind wait, as where another stage is slow throughout, their seconds and
those of their messages have one sum, and nothing tells them apart.  Then they take as long in
proportion to the stage's other passes as those of other stages do.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipekit.measured.messages import (
    PASSES,
    Mask,
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
_ROUNDS = 4  # lengths of microbatches and times of messages depend on one another
_TRIED = 13
_SAMPLE = 1000  # messages of a link, from which to fit what each takes
_UNLIKE = 8.0  # how much likelier (its logarithm) it must be that a link is not like the others
_FREE = 0.2  # the share of passes that must not wait, so that they show how long they take
_AT_ONCE = 0.02  # of a pass: what it may begin late without a wait


def lengths(relative: pd.Series, microbatch: Numbers) -> pd.Series:
    """Return for each pass how long its microbatch is, by how long passes take; 1 on the average.

    The share of the variance between microbatches says how much of a microbatch's mean to believe.
    """
    groups = relative.groupby(microbatch)
    mean, count = groups.transform("mean"), groups.transform("size")
    within = float(((relative - mean) ** 2).sum() / max(1, len(relative) - groups.ngroups))
    between = float((mean - 1).pow(2).mean())
    return 1 + (mean - 1) * np.clip(1 - within / count / max(between, 1e-300), 0, 1)


def sent_in(table: pd.DataFrame) -> pd.DataFrame:
    """Return the messages between two workers, link by link, in the order of each lane.

    Columns: kind, the rows of the passes by which they are ``made`` and ``used``, the link's worker
    of the ``low`` number and that of the ``high`` one, ``toward`` which they go (1: the latter),
    lane (of a step and way), number (in it) and sent_s.
    """
    worker, step = table["worker"].to_numpy(), table["step"].to_numpy()
    sent = pd.concat(
        [
            pd.DataFrame({"kind": payload.value, "payload": number, "made": made, "used": used})
            for number, (payload, made, used) in enumerate(between_workers(table))
        ],
        ignore_index=True,
    )
    a, b = worker[sent["made"]], worker[sent["used"]]
    sent["sent_s"] = table["end_s"].to_numpy()[sent["made"]]
    sent["way"] = packed(sent["payload"], a, b)
    sent["lane"] = packed(step[sent["made"]], sent["way"])
    sent["toward"], sent["low"], sent["high"] = np.sign(b - a), np.minimum(a, b), np.maximum(a, b)
    sent["link"] = packed(sent["low"], sent["high"])
    sent = sent.sort_values(["link", "lane", "sent_s"], kind="stable", ignore_index=True)
    return sent.assign(number=sent.groupby("lane").cumcount())


def with_messages(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each message between two workers, in the order of its link.

    None is under way before its pass has ended, nor before the one in front of it was used at the
    latest.  Where spans contain the waits for messages, they are taken off.
    """
    start, end = (table[name].to_numpy() for name in ("start_s", "end_s"))
    sent = sent_in(table)
    made, used = sent["made"].to_numpy(), sent["used"].to_numpy()
    early = end[made] - start[used] > _CLEARLY * (end[used] - start[used])
    if (pd.Series(early).groupby(sent["payload"]).mean() > _WITH_WAITS).any():
        sent, begins, _ = fitted(table, sent)
        table, seconds = table.assign(start_s=begins), sent["seconds"].to_numpy()
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


def fitted(
    table: pd.DataFrame, sent: pd.DataFrame, clock: Numbers | None = None
) -> tuple[pd.DataFrame, Times, Mask]:
    """Return what fits a table's passes best: messages, when operations begin without waits, told.

    Messages are those that :func:`sent_in` found, with the ``seconds`` that each takes, by how much
    the clock of the worker with the higher number is ``behind`` on its link, and ``within`` how
    much passes vary then.  ``told`` is false where all passes wait, so that only other stages tell
    how long they take.  ``clock`` numbers for each operation the period for which clocks stay as
    far apart as they are, and messages go both ways on each link; None: all are on one clock.
    """
    start, end = (table[name].to_numpy() for name in ("start_s", "end_s"))
    passes, used = among(table["kind"], PASSES), sent["used"].to_numpy()
    own = table.groupby(["worker", "stage", "kind"], observed=True).ngroup().to_numpy()
    microbatch = packed(*(table[name] for name in ("step", "replica", "microbatch")))
    least = pd.Series(end - start).groupby(own).transform("min").clip(lower=1e-9).to_numpy()
    pair = packed(sent["link"], np.zeros(1) if clock is None else clock[used])
    sent = sent.assign(pair=pd.factorize(pair)[0], own=own[used], unit=least[used])
    sent = sent.assign(start_s=start[used], end_s=end[used], usual=np.nan)
    # No pass ends before its message has come.
    room = (sent["end_s"] - sent["sent_s"]).groupby([sent["pair"], sent["toward"]]).min().unstack()
    most = room.mean(axis=1).groupby(sent.groupby("pair")["link"].first()).median().max()
    if clock is not None:
        sent = sent.join(room.rename(columns={1: "ahead_room", -1: "behind_room"}), on="pair")

    def lasting(begins: Times, rows: Mask) -> Times:
        """The length of each operation's microbatch, as some passes tell."""
        took = pd.Series((end - begins)[rows])
        relative = (took / took.groupby(own[rows]).transform("mean")).fillna(1.0)
        found = lengths(relative, microbatch[rows]).groupby(microbatch[rows]).first()
        return np.asarray(found.reindex(microbatch).fillna(1.0).clip(lower=0.01))

    length = lasting(start, passes & ~np.isin(np.arange(len(table)), used))  # no wait in these
    for _ in range(_ROUNDS):
        sent["length"] = length[used]
        links = [link for _, link in sent.groupby("link")]
        common = _least(partial(_cost, links), most)
        for link in links:
            ends = link["end_s"].groupby(link["lane"]).diff()  # as messages come, if all wait
            paces = ends.groupby(link["toward"]).median().dropna()
            alone = _least(partial(_cost, [link]), most, *paces)
            costs, behind = _best(link, np.array([common, alone]))
            alike, unlike = np.maximum(costs.sum(0), 1e-12)
            chosen = int(len(link) * np.log(alike / unlike) > _UNLIKE)
            pairs = link["pair"].to_numpy() - link["pair"].iloc[0]
            sent.loc[link.index, "seconds"] = (common, alone)[chosen]
            sent.loc[link.index, "behind"] = behind[pairs, chosen]
            sent.loc[link.index, "within"] = costs[pairs, chosen]
        begins = start.copy()
        came = _comes(sent, sent[["seconds"]].to_numpy())[:, 0] - sent["toward"] * sent["behind"]
        begins[used] = np.clip(came, start[used], end[used])
        length = lasting(begins, passes)
        about = table[["worker", "stage", "kind"]].assign(took=(end - begins) / length)
        about = _usual(about[passes].assign(waited=(begins - start)[passes]), own[passes])
        sent["usual"] = about["usual"].reindex(own[used]).to_numpy()
        sent["unit"] = sent["usual"].fillna(sent["unit"])
    sent["within"] *= np.median(least) / sent.groupby("pair")["pair"].transform("size")
    told = about["told"].reindex(own, fill_value=True).to_numpy()
    return sent, begins, told


def _comes(link: pd.DataFrame, tried: Times) -> Times:
    """When each message comes that takes so long, on its sender's clock."""
    number, sent_s = link["number"].to_numpy()[:, None], link["sent_s"].to_numpy()[:, None]
    waited = pd.DataFrame(sent_s - number * tried).groupby(link["lane"].to_numpy()).cummax()
    return np.asarray(waited.to_numpy() + (number + 1) * tried)  # behind those in front of it


def _cost(links: list[pd.DataFrame], tried: Times) -> Times:
    """How much passes vary, of each time that is tried for the messages of some links."""
    some = [link.head(_SAMPLE) if "ahead_room" in link else link for link in links]
    return np.asarray(np.sum([_best(link, tried)[0].sum(0) for link in some], axis=0))


def _best(link: pd.DataFrame, tried: Times) -> tuple[Times, Times]:
    """How little passes vary, [pairs, times of messages], and how far clocks are apart then."""
    pairs = np.flatnonzero(np.diff(link["pair"], prepend=-1))
    if "ahead_room" not in link:
        apart = np.zeros((len(pairs), len(tried), 1))
        return _vary(link, tried, apart)[:, :, 0], apart[:, :, 0]
    low = tried - link["ahead_room"].to_numpy()[pairs, None]
    high = link["behind_room"].to_numpy()[pairs, None] - tried
    found, width = (low + high) / 2, abs(high - low) / 2
    for _ in range(3):
        apart = found[:, :, None] + width[:, :, None] * np.linspace(-1, 1, _TRIED)
        costs = _vary(link, tried, apart)
        found = np.take_along_axis(apart, costs.argmin(2)[:, :, None], 2)[:, :, 0]
        width *= 2 / (_TRIED - 1)
    return costs.min(2), found


def _vary(link: pd.DataFrame, tried: Times, apart: Times) -> Times:
    """How much passes differ from what they usually take, as ``apart`` has it.

    That is [pairs, times of messages, differences of clocks].
    """
    names = ("start_s", "end_s", "toward", "length", "usual", "unit")
    start, end, toward, length, usual, unit = (link[name].to_numpy()[:, None] for name in names)
    pair = link["pair"].to_numpy() - link["pair"].iloc[0]
    came = _comes(link, tried)[:, :, None] - toward[:, :, None] * apart[pair]
    took = (end - np.maximum(came.reshape(len(link), -1), start)) / length
    if np.isnan(usual).any():
        alone = pd.DataFrame(took).groupby([pair, link["own"].to_numpy()]).transform("median")
        usual = np.where(np.isnan(usual), alone, usual)
    off = np.minimum(abs(took - usual), unit) - np.minimum(took, 0.0)  # a pause counts once
    first = np.flatnonzero(np.diff(pair, prepend=-1))
    return np.asarray(np.add.reduceat(off / unit, first, axis=0).reshape(apart.shape))


def _usual(passes: pd.DataFrame, own: Numbers) -> pd.DataFrame:
    """Return by ``own`` what passes take, as ``usual``, and whether those without waits tell it.

    What they do not tell is in proportion to what is told of the stage, or else to all of it.
    """
    usual = passes["took"].groupby(own).transform("median").clip(lower=1e-9)
    passes = passes.assign(usual=usual, told=passes["waited"] <= _AT_ONCE * usual)
    about = passes.groupby(own).agg(dict.fromkeys(("worker", "stage", "kind", "usual"), "first"))
    about["told"] = passes["told"].groupby(own).mean() >= _FREE
    home = [about["worker"], about["stage"]]
    whole = about.set_index(["worker", "stage", "kind"])["usual"].unstack().dropna()
    tells = about["told"].groupby(home).all().reindex(whole.index)
    whole = whole[tells] if tells.any() else whole
    share = about["kind"].astype(object).map(whole.div(whole.sum(axis=1), axis=0).median())
    base = about["told"] | ~about["told"].groupby(home).transform("any")
    takes, shares = (
        each.where(base).groupby(home).transform("sum") for each in (about["usual"], share)
    )
    return about.assign(usual=about["usual"].where(about["told"], share * takes / shares))


def _least(cost: Callable[[Times], Times], most: float, *others: float) -> float:
    """Return where between 0 and ``most``, or at others, a cost is least; the first of several."""
    best, width = most / 2, most / 2
    for _ in range(2):
        tried = np.linspace(max(0.0, best - width), best + width, _TRIED)
        best, width = float(tried[np.argmin(cost(tried))]), 2 * width / (_TRIED - 1)
    tried = np.array([best, *others])  # the least is too narrow to be met between them
    return float(tried[np.argmin(cost(tried))])
