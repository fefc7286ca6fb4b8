"""What the sweep says, in sentences: every number is computed from the table of trainings.

A sentence says no more than the seeds decide (:mod:`.claims`): what they leave open is undecided.
"""

from collections.abc import Iterator

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.claims import (
    AGREES,
    CLAIMS,
    CONTRADICTS,
    HARMS,
    HELPS,
    ORDER,
    UNDECIDED,
    PaperClaim,
    mitigations,
    verdicts,
)
from experiments.staleness.comparison import OWN
from experiments.staleness.proxies import of_setting
from experiments.staleness.sweep import ARM

DELAYS = ("2bw", "pipedream")
"""The methods whose delay the optimizers are compared by."""


def sentences(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the findings, what contradicts a paper first: ``number`` from 1, ``name``, ``text``.

    As many, of whatever trainings there are: what was not trained is said to be so.
    """
    table = verdicts(trainings)
    verdicts_of = {name: {*own} for name, own in table.groupby("name")["verdict"]}

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
    words = {CONTRADICTS: "contradicted", AGREES: "met", UNDECIDED: "undecided"}
    parts = []
    for verdict, word in words.items():
        rows = own[own["verdict"] == verdict]
        if len(rows):
            low, high = (f"{each:+.3f}" for each in (rows["excess"].min(), rows["excess"].max()))
            span = low if len(rows) == 1 else f"{low} to {high}"
            parts.append(f"{word} in {len(rows)} of {len(own)} ({span} nats; {_where(rows, own)})")
    return f"{quoted}: {'; '.join(parts)} (measured)."


def _where(rows: pd.DataFrame, claim: pd.DataFrame) -> str:
    """Return the settings of some comparisons, with what tells them from a claim's others."""
    names = rows["proxy"] + " by " + rows["optimizer"]
    if claim["stages"].nunique() > 1:
        names = names + " on " + rows["stages"].astype(str) + " stages"
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
