"""The report as a table: a row a claim."""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from pipekit.ledger.outcomes import Outcome, summaries


def frame(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a claim: the ledger's columns, then our value (as JSON) and its origin."""
    return pd.DataFrame([_row(outcome) for outcome in outcomes])


def scores(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row a paper, and one for all: how many claims have each status."""
    papers = {paper: dict(its.having) for paper, its in summaries(outcomes).items()}
    table = pd.DataFrame(
        [{status.value: count for status, count in having.items()} for having in papers.values()],
        index=pd.Index(papers, name="paper"),
    )
    table.loc["all"] = table.sum()
    return table.assign(claims=table.sum(axis="columns")).reset_index()


def _row(outcome: Outcome) -> dict[str, Any]:
    claim, record = outcome.claim, outcome.record
    origin = {} if record is None else record.provenance
    return {
        "id": claim.id,
        "paper": claim.paper,
        "where": claim.where,
        "claim": claim.claim,
        "conditions": claim.conditions,
        "value": claim.value,
        "unit": claim.unit,
        "wanted": claim.label,
        "tolerance": claim.tolerance,
        "check": claim.check,
        "record": claim.record,
        "status": outcome.status.value,
        "ours": None if record is None else json.dumps(record.value, ensure_ascii=False),
        "ratio": outcome.ratio,
        "repeats": json.dumps(record.repeats) if record and record.repeats else None,
        "label": None if record is None else record.label,
        "weaker": outcome.label_note,
        "why": outcome.why,
        "cause": outcome.cause,
        "contradiction": None if record is None else record.contradiction or None,
        "our_note": None if record is None else record.note,
        "notebook": None if record is None else record.notebook,
        "figure": None if record is None else record.figure,
        **{key: origin.get(key) for key in ("utc", "commit", "seed", "cpu", "torch", "pipekit")},
    }
