"""What becomes of claims if one thing is changed: which misses it turns, which passes it breaks.

The experiments that were made to explain misses (:class:`pipekit.ledger.outcomes.Cause`) are also
made where a claim is met.  A change that explains a miss and breaks as many passes explains little.
"""

from collections.abc import Iterable

import pandas as pd

from pipekit.ledger.outcomes import Outcome, Status, show

TURNED, BROKEN, STILL_MISSED, STILL_MET = "turned", "broken", "still missed", "still met"

_BECOMES = {
    (Status.MISS, True): TURNED,
    (Status.MISS, False): STILL_MISSED,
    (Status.PASS, True): STILL_MET,
    (Status.PASS, False): BROKEN,
}


def experiments(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return a row an experiment of a decided claim.

    Columns: paper, claim, status, cause (its name), instead (what was done), ours, changed (our
    value with that change), label (of that value) and becomes: one of :data:`TURNED` (a miss that
    is met), :data:`BROKEN` (a pass that is not), :data:`STILL_MISSED` and :data:`STILL_MET`.
    """
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
            "becomes": _becomes(outcome, cause.value),
        }
        for outcome in outcomes
        if outcome.record is not None and outcome.status in (Status.PASS, Status.MISS)
        for cause in outcome.record.causes
    ]
    columns = ["paper", "claim", "status", "cause", "instead", "ours", "changed", "label"]
    return pd.DataFrame(rows, columns=[*columns, "becomes"])


def summary(tried: pd.DataFrame) -> pd.DataFrame:
    """Return a row a change, by :func:`experiments`: on how many claims it was tried, and then.

    Columns: cause, claims, turned, broken, still missed, still met, and net, which is turned minus
    broken; the most helpful first.
    """
    becomes = [TURNED, BROKEN, STILL_MISSED, STILL_MET]
    counts = pd.crosstab(tried["cause"], tried["becomes"]).reindex(columns=becomes, fill_value=0)
    counts.insert(0, "claims", counts.sum(axis="columns"))
    counts["net"] = counts[TURNED] - counts[BROKEN]
    ordered = counts.sort_values(["net", TURNED], ascending=False, kind="stable")
    return ordered.rename_axis(columns=None).reset_index()


def _becomes(outcome: Outcome, changed: object) -> str:
    return _BECOMES[outcome.status, outcome.claim.met_by(changed)]
