"""The report as tables: a row a claim, a row a paper, and what becomes of claims by one change."""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from pipekit.ledger.outcomes import BECOMES, BROKEN, TURNED, Outcome, Status, show


def frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a claim: the ledger's columns, then our value (as JSON) and its origin."""
    return pd.DataFrame([_row(outcome) for outcome in outcomes])


def scores(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a paper, in the ledger's order, and one for all: how many claims are of a kind.

    ``met after`` are the passes whose criterion was written when values were known, ``weakly
    decided`` passes and misses by a number of a weaker kind than the claim wants.
    """
    table = frame(outcomes)
    of = pd.DataFrame({status.value: table["status"] == status.value for status in Status})
    of["claims"] = True
    of["met after"] = of["pass"] & (table["written"] != "")
    of["weakly decided"] = (of["pass"] | of["miss"]) & (table["weaker"] != "")
    counts = of.groupby(table["paper"], sort=False).sum()
    counts.loc["all"] = counts.sum()
    return counts.reset_index()


def kinds(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row for each label that our values have: how many claims of it are decided how."""
    found = frame(outcomes)
    decided = [Status.PASS, Status.MISS, Status.REFUTED, Status.UNDECIDED]
    columns = [status.value for status in decided]
    counts = pd.crosstab(found["label"], found["status"]).reindex(columns=columns, fill_value=0)
    return counts.rename_axis(columns=None).reset_index()


def experiments(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row for each cause of :attr:`Outcome.tried`: what was done, and ours then."""
    rows = [
        {
            "paper": outcome.claim.paper,
            "claim": outcome.claim.id,
            "status": outcome.status.value,
            "cause": cause.name,
            "instead": cause.changed,
            "ours": show(outcome.record.value),
            "changed": show(cause.value),
            "label": cause.label,
            "becomes": becomes,
        }
        for outcome in outcomes
        if outcome.record is not None
        for cause, becomes in outcome.tried()
    ]
    columns = ["paper", "claim", "status", "cause", "instead", "ours", "changed", "label"]
    return pd.DataFrame(rows, columns=[*columns, "becomes"])


def changes(tried: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cause: what becomes of its claims, and the net: turned minus broken."""
    counts = pd.crosstab(tried["cause"], tried["becomes"]).reindex(columns=[*BECOMES], fill_value=0)
    counts.insert(0, "claims", counts.sum(axis="columns"))
    counts["net"] = counts[TURNED] - counts[BROKEN]
    ordered = counts.sort_values(["net", TURNED], ascending=False, kind="stable")
    return ordered.rename_axis(columns=None).reset_index()


def _row(outcome: Outcome) -> dict[str, Any]:
    claim, record = outcome.claim, outcome.record
    row = {
        **vars(claim),
        "wanted": claim.label,
        "label": None,
        "status": outcome.status.value,
        "ratio": outcome.ratio,
        "weaker": outcome.label_note,
        "why": outcome.why,
        "cause": outcome.cause,
    }
    if record is None:
        return row
    origin = ("utc", "commit", "seed", "cpu", "torch", "pipekit")
    return row | {
        "label": record.label,
        "ours": json.dumps(record.value, ensure_ascii=False),
        "repeats": json.dumps(record.repeats) if record.repeats else None,
        "contradiction": record.contradiction or None,
        "our_note": record.note,
        "notebook": record.folder.name,
        "figure": record.figure,
        **{key: record.provenance.get(key) for key in origin},
    }
