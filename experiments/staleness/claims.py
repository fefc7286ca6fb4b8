"""What papers say of stale weights, and whether the sweep agrees: each claim in each setting.

A claim is a sign of a method's loss beside another's.  It is judged by the paired differences of
the final validation losses (:func:`.comparison.excess`), and by a margin, within which a
difference is negligible: the standard deviation of the other method's loss over seeds.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.comparison import LEVEL, OWN, SYNCS, holm, plain
from experiments.staleness.methods import METHODS, SYNC
from experiments.staleness.sweep import ARM

CONTRADICTS, AGREES, UNDECIDED = "contradicts", "agrees", "undecided"


class PaperClaim(NamedTuple):
    """What a paper says of a method beside another one, as a sign of its excess in loss.

    A row of ``data/staleness_claims.csv``.
    """

    name: str  # ours
    source: str  # paper and section
    text: str  # with what was put in or left out in brackets
    method: str  # whose loss
    other: str  # beside which
    expected: str  # of the loss: "higher", "lower", "same", "not higher", "not lower"
    trained: str  # what the paper trained, or nearest to it: "gpt adamw, bert adamw"
    optimizer: str = ""  # the only one that it is about; empty: any
    other_optimizer: str = ""  # that of the other method, if it is not the same

    def verdict(self, told: float, above: bool, below: bool) -> str:
        """Return whether a comparison agrees; ``told``: the excess if its sign is shown, else 0."""
        higher, lower = told > 0 and not above, told < 0 and not below
        agrees, contradicts = {
            "higher": (higher, lower or above),
            "lower": (lower, higher or below),
            "not higher": (lower or above, higher),
            "same": (above and below, higher or lower),
            "not lower": (higher or below, lower),
        }[self.expected]
        return CONTRADICTS if contradicts else AGREES if agrees else UNDECIDED


with (Path(__file__).parents[2] / "data" / "staleness_claims.csv").open(encoding="utf-8") as _file:
    CLAIMS = tuple(PaperClaim(**row) for row in csv.DictReader(_file))

HELPS, HARMS = "helps", "harms"
WORDS = {CONTRADICTS: "contradicted", UNDECIDED: "undecided", AGREES: "met"}
"""Of verdicts, the worst first."""
COMPARED = ["method", "other", "other_optimizer"]
COLUMNS = ["verdict", "name", "claim", "source", "trained", "proxy", "optimizer", "stages", "rates"]
COLUMNS += ["diverged", "seeds", "excess", "low", "high", "margin", "effect", "p", "p_holm"]


def comparisons(judged: pd.DataFrame) -> pd.DataFrame:
    """Return what claims and mitigations ask for, each comparison once.

    Columns: :data:`COMPARED`, and those of :func:`.comparison.against`; p "above" and "below" are
    corrected for their number, and so is ``p_holm``.
    """
    asked = [(name, plain(name), "", "") for name in METHODS if plain(name) != name]
    asked += [(c.method, c.other, c.other_optimizer, c.optimizer) for c in CLAIMS]
    rows = [
        dict(zip(COMPARED, (name, other, optimizer), strict=True)) | pair
        for name, other, optimizer, only in asked
        for rates in ((OWN, SYNCS) if (other, optimizer) == (SYNC, "") else (OWN,))
        for pair in comparison.against(judged, name, other, optimizer, rates)
        if only in ("", pair["optimizer"])
    ]
    found = pd.DataFrame(rows)
    found = found.drop_duplicates([*COMPARED, "proxy", "optimizer", "stages", "rates"])
    corrected = found[["p", "above", "below"]].apply(holm)
    return found.assign(p_holm=corrected["p"], above=corrected["above"], below=corrected["below"])


def verdicts(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return each claim in each setting that was trained, contradictions first.

    ``trained``: whether the paper trained such a network with that optimizer; ``effect``: the
    excess over the margin; others as of :func:`comparisons`.
    """
    every, rows = comparisons(comparison.judged(trainings)), []
    for claim in CLAIMS:
        own = every[
            (every[COMPARED] == [claim.method, claim.other, claim.other_optimizer]).all(axis=1)
        ]
        for row in own[own["optimizer"].str.fullmatch(claim.optimizer or ".*")].to_dict("records"):
            told = row["excess"] * (row["p_holm"] < LEVEL)
            verdict = claim.verdict(told, row["above"] < LEVEL, row["below"] < LEVEL)
            network = row["proxy"].partition("-")[0]
            trained = f"{network} {row['optimizer']}" in claim.trained.split(", ")
            about = {"name": claim.name, "claim": claim.text, "source": claim.source}
            judged = {"verdict": verdict, "trained": trained}
            rows.append(about | judged | {"effect": row["excess"] / row["margin"]} | row)
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        "verdict", key=lambda each: each.map([*WORDS].index), kind="stable", ignore_index=True
    )


def mitigations(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return what each mitigation earns over the method that it was added to: a row a setting.

    ``verdict`` is :data:`HELPS`, :data:`HARMS` or undecided, ``of`` the method without it, over
    which ``excess`` is (nats), and ``saved`` the share of the cost of that one's delay.
    """
    costs = comparison.summary(trainings)
    costs = costs[costs["at"] == OWN].set_index([*comparison.SETTING, "method", "stages"])["cost"]
    every, rows = comparisons(comparison.judged(trainings)).query("method != other"), []
    for row in every[every["method"].map(plain) == every["other"]].to_dict("records"):
        of, excess, verdict = row["other"], row["excess"], UNDECIDED
        if row["p_holm"] < LEVEL:
            verdict = HELPS if excess < 0 else HARMS
        cost = costs.get((row["proxy"], row["optimizer"], of, METHODS[of].depth(row["stages"])), 0)
        saved = -excess / cost if cost > 0 else None
        rows.append(row | {"verdict": verdict, "of": of, "saved": saved})
    names = ["verdict", "proxy", "optimizer", "method", "of", "stages", "seeds", "excess"]
    return pd.DataFrame(rows, columns=[*names, "low", "high", "saved", "p", "p_holm"])


def findings(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a claim: what became of it in settings as its paper trained, and beyond."""

    def counted(claim: str, trained: bool) -> str:
        own = table[(table["name"] == claim) & (table["trained"] == trained)]
        counts = own["verdict"].value_counts()
        return ", ".join(f"{counts[v]} {word}" for v, word in WORDS.items() if v in counts) or "–"

    columns = ["name", "source", "claim", "as_trained", "beyond"]
    each = [
        (c.name, c.source, c.text, *(counted(c.name, t) for t in (True, False))) for c in CLAIMS
    ]
    return pd.DataFrame(each, columns=columns)


def counts(trainings: pd.DataFrame) -> str:
    """Return how many trainings there are, and how long they took."""
    judged = comparison.judged(trainings)
    arms, hours = judged.loc[judged["at"] == OWN, ARM], trainings["cpu_s"].sum() / 3600
    size = f"{len(trainings):,} trainings, {hours:.2f} hours of CPU time (measured)"
    return f"{size}, {len(arms.drop_duplicates())} complete arms"
