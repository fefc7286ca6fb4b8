"""What the sweep says, in sentences: every number is computed from the table of trainings.

A sentence says no more than the seeds decide (:mod:`.paired`): what they leave open is undecided.
"""

from collections.abc import Iterator

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.claims import (
    AGREES,
    CLAIMS,
    CONTRADICTS,
    UNDECIDED,
    PaperClaim,
    verdicts,
)
from experiments.staleness.comparison import OWN
from experiments.staleness.methods import METHODS
from experiments.staleness.paired import LEVEL, holm
from experiments.staleness.proxies import of_setting
from experiments.staleness.sweep import ARM

HELPS, HARMS = "helps", "harms"
DELAYS = ("2bw", "pipedream")
"""The methods whose delay the optimizers are compared by."""


def sentences(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the findings, what contradicts a paper first: ``number`` from 1, ``name``, ``text``.

    As many, of whatever trainings there are: what was not trained is said to be so.
    """
    table = verdicts(trainings)
    order = [CONTRADICTS, UNDECIDED, AGREES]
    told = [(_worst(table, claim, order), claim.name, _on_claim(table, claim)) for claim in CLAIMS]
    found = [(name, text) for _, name, text in sorted(told, key=lambda each: each[0])]
    found.append(("optimizers", " ".join(_on_optimizers(trainings)) or "Optimizers: not trained."))
    found.append(("mitigations", _on_mitigations(mitigations(trainings))))
    found.append(("networks", f"The networks: {'; '.join(_on_networks(trainings))}."))
    frame = pd.DataFrame(found, columns=["name", "text"])
    frame.insert(0, "number", range(1, len(frame) + 1))
    return frame


def listed(said: pd.DataFrame) -> str:
    """Return sentences as a numbered list in Markdown, each after its name."""
    return "\n".join(
        f"{each.number}. **{each.name}** {each.text}" for each in said.itertuples(False)
    )


def mitigations(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return what each mitigation earns over the method that it was added to: a row a setting.

    Columns: ``verdict`` (:data:`HELPS`, :data:`HARMS` or undecided, by ``p_holm``), proxy,
    optimizer, ``method``, ``of`` (the method without it), stages, ``seeds``, ``excess`` over that
    (nats, mean over seeds; below 0 it helps) with its interval ``low`` to ``high``, ``saved`` (the
    share of the cost of that one's delay; 1: as good as no delay), ``p``, ``p_holm``.
    """
    costs = comparison.summary(trainings)
    costs = costs[costs["at"] == OWN].set_index([*comparison.SETTING, "method", "stages"])["cost"]
    rows = []
    for method, each in METHODS.items():
        of = comparison.plain(method)
        if of == method:
            continue
        for proxy, optimizer, stages, found, _ in comparison.against(trainings, method, of):
            cost = costs.get((proxy, optimizer, of, each.depth(stages)), float("nan"))
            saved = -found.mean / cost if cost > 0 else float("nan")
            numbers = found.seeds, found.mean, found.low, found.high, saved, found.p
            rows.append((proxy, optimizer, method, of, stages, *numbers))
    names = ["proxy", "optimizer", "method", "of", "stages"]
    table = pd.DataFrame(rows, columns=[*names, "seeds", "excess", "low", "high", "saved", "p"])
    table["p_holm"] = holm(table["p"])
    told = table["p_holm"] < LEVEL
    better = table["excess"] < 0
    verdict = pd.Series(UNDECIDED, index=table.index)
    verdict = verdict.mask(told & better, HELPS).mask(told & ~better, HARMS)
    table.insert(0, "verdict", verdict)
    return table


def counts(trainings: pd.DataFrame) -> str:
    """Return how many trainings there are, and how long they took."""
    hours = trainings["cpu_s"].sum() / 3600
    judged = comparison.judged(trainings)
    arms = judged.loc[judged["at"] == OWN, ARM].drop_duplicates()
    return (
        f"{len(trainings):,} trainings, {hours:.2f} hours of CPU time (measured), "
        f"{len(arms)} complete arms"
    )


def _worst(table: pd.DataFrame, claim: PaperClaim, order: list[str]) -> int:
    """Return the place of a claim: that of its worst verdict, or behind all."""
    found = set(table.loc[table["name"] == claim.name, "verdict"])
    return next((place for place, verdict in enumerate(order) if verdict in found), len(order))


def _on_claim(table: pd.DataFrame, claim: PaperClaim) -> str:
    own = table[table["name"] == claim.name]
    quoted = f"“{claim.text}” ({claim.source})"
    if own.empty:
        return f"{quoted}: not trained."
    words = {CONTRADICTS: "contradicted", AGREES: "met", UNDECIDED: "undecided"}
    parts = []
    for verdict, word in words.items():
        rows = own[own["verdict"] == verdict]
        if len(rows):
            ends = f"{rows['excess'].min():+.3f} to {rows['excess'].max():+.3f}"
            span = f"{rows['excess'].iloc[0]:+.3f}" if len(rows) == 1 else ends
            parts.append(f"{word} in {len(rows)} of {len(own)} ({span} nats; {_where(rows, own)})")
    return f"{quoted}: {'; '.join(parts)} (measured)."


def _where(rows: pd.DataFrame, claim: pd.DataFrame) -> str:
    """Return the settings of some comparisons, with what tells them from a claim's others."""
    names = rows["proxy"] + " by " + rows["optimizer"]
    if claim["stages"].nunique() > 1:
        names = names + " on " + rows["stages"].astype(str) + " stages"
    return "; ".join(
        f"at {rates}: {', '.join(names[own.index])}"
        for rates, own in rows.groupby("rates", sort=False)
    )


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


def _on_networks(trainings: pd.DataFrame) -> Iterator[str]:
    for proxy, own in trainings.groupby("proxy", sort=False):
        size = f"{len(own):,} trainings, {own['cpu_s'].sum() / 3600:.2f} hours of CPU time"
        yield f"{proxy} ({of_setting(str(proxy)).description}; {size}, measured)"


def _on_mitigations(table: pd.DataFrame) -> str:
    if table.empty:
        return "Mitigations: not trained."
    parts = []
    for verdict in (HELPS, HARMS, UNDECIDED):
        rows = table[table["verdict"] == verdict]
        if len(rows):
            each = "; ".join(
                f"{row.method} over {row.of} on {row.proxy} by {row.optimizer} {row.excess:+.3f}"
                for row in rows.itertuples()
            )
            parts.append(f"{verdict} in {len(rows)} of {len(table)} ({each} nats)")
    return f"A mitigation {'; '.join(parts)} (measured)."
