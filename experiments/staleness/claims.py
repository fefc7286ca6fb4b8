"""Whether the sweep agrees with what papers say of stale weights: each claim in each setting.

A claim is judged by the paired differences of the final validation losses
(:class:`.comparison.Excess`), and by a margin: the standard deviation over seeds of the other
method's loss.  A difference within it is negligible, since another seed would make as much.  What a
paper trained is told apart from other networks and optimizers.
"""

from collections.abc import Iterator

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.comparison import LEVEL, OWN, SYNCS, holm, plain
from experiments.staleness.methods import METHODS, SYNC
from experiments.staleness.paper_claims import AGREES, CLAIMS, CONTRADICTS, UNDECIDED, PaperClaim
from experiments.staleness.proxies import of_setting
from experiments.staleness.sweep import ARM

ORDER = [CONTRADICTS, UNDECIDED, AGREES]
HELPS, HARMS = "helps", "harms"
COLUMNS = ["verdict", "name", "claim", "source", "trained", "proxy", "optimizer", "stages", "rates"]
COLUMNS += ["diverged", "seeds", "excess", "low", "high", "margin", "effect", "p", "p_holm"]
Key = tuple[str | int, ...]
"""What a comparison is of: method, other, its optimizer, proxy, optimizer, stages, rates."""


def verdicts(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return each claim in each setting that was trained, contradictions first.

    Columns: ``verdict``, ``name``, ``claim``, ``source``, ``trained`` (whether the paper trained
    such a network with that optimizer), proxy, optimizer, stages, ``rates`` (each at its own, or
    both at that of no delay, which is how the papers compare), ``diverged`` (trainings of both
    methods that did), ``seeds``, ``excess`` (nats of the final validation loss, mean over seeds)
    with its interval ``low`` to ``high``, ``margin``, ``effect`` (the excess over the margin),
    ``p`` of the comparison alone and ``p_holm`` among all of this table's and of
    :func:`mitigations`.
    """
    judged = comparison.judged(trainings)
    corrected, rows = _corrected(judged), []
    for claim in CLAIMS:
        for key, (*setting, diverged, found, spread) in _pairs(claim, judged):
            p = corrected.loc[[key]].iloc[0]
            told = found.mean * (p["p"] < LEVEL)
            verdict = claim.verdict(told, p["above"] < LEVEL, p["below"] < LEVEL)
            covered = claim.covers(str(setting[0]), str(setting[1]))
            about = verdict, claim.name, claim.text, claim.source, covered
            values = (found.seeds, found.mean, *found.interval, spread, found.mean / spread)
            rows.append((*about, *setting, key[-1], diverged, *values, found.p, p["p"]))
    table = pd.DataFrame(rows, columns=COLUMNS)
    place = {verdict: number for number, verdict in enumerate(ORDER)}
    by = table["verdict"].map(place)
    return table.loc[by.sort_values(kind="stable").index].reset_index(drop=True)


def _corrected(judged: pd.DataFrame) -> pd.DataFrame:
    """Return the p of every comparison that a claim or a mitigation asks for, by its key.

    Each column is corrected for its number: "p" (no difference), and those of an excess that is
    "above" or "below" the margin.
    """
    pairs = dict(_mitigated(judged))  # two claims may ask for one comparison, and a mitigation, too
    pairs |= {key: pair for claim in CLAIMS for key, pair in _pairs(claim, judged)}
    tests = pd.DataFrame(
        {
            "p": pair.found.p,
            "above": pair.found.p_above(pair.spread),
            "below": pair.found.p_below(-pair.spread),
        }
        for pair in pairs.values()
    ).set_axis(pd.Index([*pairs], tupleize_cols=False))
    return tests.apply(holm)


def _pairs(claim: PaperClaim, judged: pd.DataFrame) -> Iterator[tuple[Key, comparison.Pair]]:
    """Yield the comparisons that decide a claim, each with what it is and is not of."""
    both = claim.other == SYNC and not claim.other_optimizer
    for at in (OWN, SYNCS) if both else (OWN,):
        for pair in comparison.against(
            judged, claim.method, claim.other, claim.other_optimizer or None, at
        ):
            if pair.optimizer == (claim.optimizer or pair.optimizer):
                beside = claim.method, claim.other, claim.other_optimizer
                yield (*beside, pair.proxy, pair.optimizer, pair.stages, at), pair


def _mitigated(judged: pd.DataFrame) -> Iterator[tuple[Key, comparison.Pair]]:
    """Yield each mitigation beside the method that it was added to, at their own rates."""
    for method in [name for name in METHODS if plain(name) != name]:
        for pair in comparison.against(judged, method, plain(method)):
            setting = pair.proxy, pair.optimizer, pair.stages
            yield (method, plain(method), "", *setting, OWN), pair


def mitigations(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return what each mitigation earns over the method that it was added to: a row a setting.

    Columns: ``verdict`` (:data:`HELPS`, :data:`HARMS` or undecided, by ``p_holm``), proxy,
    optimizer, ``method``, ``of`` (the method without it), stages, ``seeds``, ``excess`` over that
    (nats, mean over seeds; below 0 it helps) with its interval ``low`` to ``high``, ``saved`` (the
    share of the cost of that one's delay; 1: as good as no delay), ``p``, ``p_holm``.
    """
    costs = comparison.summary(trainings)
    costs = costs[costs["at"] == OWN].set_index([*comparison.SETTING, "method", "stages"])["cost"]
    judged, rows = comparison.judged(trainings), []
    corrected = _corrected(judged)
    for key, pair in _mitigated(judged):
        (method, of, *_), found = key, pair.found
        depth = METHODS[str(of)].depth(pair.stages)
        cost = costs.get((pair.proxy, pair.optimizer, of, depth), float("nan"))
        saved = -found.mean / cost if cost > 0 else float("nan")
        setting = pair.proxy, pair.optimizer, method, of, pair.stages
        p = found.p, corrected.loc[[key], "p"].item()
        rows.append((*setting, found.seeds, found.mean, *found.interval, saved, *p))
    names = ["proxy", "optimizer", "method", "of", "stages", "seeds", "excess", "low", "high"]
    table = pd.DataFrame(rows, columns=[*names, "saved", "p", "p_holm"])
    told, better = table["p_holm"] < LEVEL, table["excess"] < 0
    verdict = pd.Series(UNDECIDED, index=table.index)
    verdict = verdict.mask(told & better, HELPS).mask(told & ~better, HARMS)
    table.insert(0, "verdict", verdict)
    return table


DELAYS = ("2bw", "pipedream")
"""The methods whose delay the optimizers are compared by."""


def sentences(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the findings, contradictions first: ``number`` from 1, ``name``, ``text``."""
    table = verdicts(trainings)
    own = table[table["trained"]].groupby("name")["verdict"]
    verdicts_of = {name: {*each} for name, each in own}

    def worst(claim: PaperClaim) -> int:
        found = verdicts_of.get(claim.name, set())
        return next((n for n, verdict in enumerate(ORDER) if verdict in found), len(ORDER))

    found = [(claim.name, _on_claim(table, claim)) for claim in sorted(CLAIMS, key=worst)]
    found.append(("optimizers", " ".join(_on_optimizers(trainings)) or "Optimizers: not trained."))
    found.append(("mitigations", _on_mitigations(mitigations(trainings))))
    networks = (
        f"{proxy} ({of_setting(str(proxy)).description}; {_size(own)}, measured)"
        for proxy, own in trainings.groupby("proxy", sort=False)
    )
    found.append(("networks", f"The networks: {'; '.join(networks)}."))
    frame = pd.DataFrame(found, columns=["name", "text"])
    frame.insert(0, "number", range(1, len(frame) + 1))
    return frame


def counts(trainings: pd.DataFrame) -> str:
    """Return how many trainings there are, and how long they took."""
    judged = comparison.judged(trainings)
    arms = judged.loc[judged["at"] == OWN, ARM].drop_duplicates()
    return f"{_size(trainings)} (measured), {len(arms)} complete arms"


def _size(trainings: pd.DataFrame) -> str:
    hours = trainings["cpu_s"].sum() / 3600
    return f"{len(trainings):,} trainings, {hours:.2f} hours of CPU time"


def _on_claim(table: pd.DataFrame, claim: PaperClaim) -> str:
    own = table[table["name"] == claim.name]
    quoted = f"“{claim.text}” ({claim.source})"
    if own.empty:
        return f"{quoted}: not trained."
    parts = []
    for trained, where in ((True, ""), (False, "beyond what the paper trained, ")):
        rows = own[own["trained"] == trained]
        if len(rows):
            parts.append(where + "; ".join(_verdicts_in_words(rows)))
    return f"{quoted}: {'; '.join(parts)} (measured)."


def _verdicts_in_words(table: pd.DataFrame) -> Iterator[str]:
    for verdict, word in {
        CONTRADICTS: "contradicted",
        AGREES: "met",
        UNDECIDED: "undecided",
    }.items():
        rows = table[table["verdict"] == verdict]
        whole = rows.loc[
            rows["diverged"] == 0, "excess"
        ]  # one that diverged has no loss of its own
        span = " to ".join(f"{each:+.3f}" for each in sorted({whole.min(), whole.max()}))
        if len(rows):
            nats = f"{span} nats; " if len(whole) else ""
            yield f"{word} in {len(rows)} of {len(table)} ({nats}{_where(rows, table)})"


def _where(rows: pd.DataFrame, claim: pd.DataFrame) -> str:
    """Return the settings of some comparisons, with what tells them from a claim's others."""
    names = rows["proxy"] + " by " + rows["optimizer"]
    if claim["stages"].nunique() > 1:
        names = names + " on " + rows["stages"].astype(str) + " stages"
    names = names + rows["diverged"].map(lambda runs: f" (diverged: {runs})" if runs else "")
    groups = rows.groupby("rates", sort=False)
    return "; ".join(f"at {rates}: {', '.join(names[own.index])}" for rates, own in groups)


def _on_optimizers(trainings: pd.DataFrame) -> Iterator[str]:
    table = comparison.summary(trainings)
    own = table[(table["at"] == OWN) & table["method"].isin(DELAYS) & table["cost"].notna()]
    for (proxy, arm), rows in own.groupby(["proxy", "arm"], sort=False):
        if len(rows) > 1:
            costs = ", ".join(
                f"{row.optimizer} {row.cost:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
                for row in rows.sort_values("cost").itertuples()
            )
            yield f"{arm} costs on {proxy}, in nats: {costs} (measured)."


def _on_mitigations(table: pd.DataFrame) -> str:
    parts = []
    for verdict in (HELPS, HARMS, UNDECIDED):
        rows = table[table["verdict"] == verdict]
        each = "; ".join(
            f"{row.method} over {row.of} on {row.proxy} by {row.optimizer} {row.excess:+.3f}"
            for row in rows.itertuples()
        )
        if each:
            parts.append(f"{verdict} in {len(rows)} of {len(table)} ({each} nats)")
    return f"A mitigation {'; '.join(parts)} (measured)." if parts else "Mitigations: not trained."
