"""What the sweep says, in sentences: every number is computed from the table of trainings."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from pipekit.papers.staleness import comparison
from pipekit.papers.staleness.comparison import LEVEL, OWN
from pipekit.papers.staleness.methods import SYNC
from pipekit.papers.staleness.sweep import ARM

CONTRADICTS, AGREES = "contradicts", "agrees"
HIGHER, NOT_HIGHER, SAME = "higher", "not higher", "same"


@dataclass(frozen=True)
class PaperClaim:
    """What a paper says of a method beside another one, as a sign of its excess in loss.

    Attributes:
        source: paper and section.
        text: what it says.
        method: whose loss.
        other: beside which.
        expected: what follows for the loss: one of :data:`HIGHER`, :data:`NOT_HIGHER`,
            :data:`SAME`.
    """

    source: str
    text: str
    method: str
    other: str
    expected: str

    def verdict(self, excess: float, p: float) -> str:
        """Return whether an excess, and the p that it is none, agree with the paper."""
        told = p < LEVEL
        found = {
            HIGHER: told and excess > 0,
            NOT_HIGHER: not (told and excess > 0),
            SAME: not told,
        }
        return AGREES if found[self.expected] else CONTRADICTS


CLAIMS = (
    PaperClaim(
        "PipeDream-2BW, sections 1 and 5.1",
        "2BW has empirically similar model convergence to vanilla",
        "2bw",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "PipeDream, section 3.4",
        "PipeDream's semantics lie between those of one machine and of data parallelism",
        "pipedream",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "PipeDream, section 3.4",
        "weight stashing is critical for meaningful learning",
        "no-stashing",
        "pipedream",
        HIGHER,
    ),
    PaperClaim(
        "PipeDream, section 3.4, footnote 4",
        "the impact of vertical sync is negligible",
        "vertical-sync",
        "pipedream",
        SAME,
    ),
)


def verdicts(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return each claim beside each setting that decides it, contradictions first.

    Columns: ``verdict``, ``claim``, ``source``, proxy, optimizer, stages, ``excess`` (nats of the
    validation loss at the end, mean over seeds), ``error`` (its standard error), ``p``, ``rates``
    (each at its own, or both at that of no delay, which is how the papers compare).
    """
    table = comparison.summary(trainings)
    found = []
    for claim in CLAIMS:
        if claim.other == SYNC:
            rows = table[table["method"] == claim.method].rename(columns={"cost": "excess"})
            rows = rows.assign(rates=rows["at"])
        else:
            rows = comparison.against(trainings, claim.method, claim.other).assign(rates=OWN)
        for row in rows.to_dict("records"):
            names = ["proxy", "optimizer", "stages", "excess", "error", "p", "rates"]
            found.append(
                {
                    "verdict": claim.verdict(row["excess"], row["p"]),
                    "claim": claim.text,
                    "source": claim.source,
                    **{name: row[name] for name in names},
                }
            )
    order = {CONTRADICTS: 0, AGREES: 1}
    return pd.DataFrame(found).sort_values(
        "verdict", key=lambda verdict: verdict.map(order), kind="stable", ignore_index=True
    )


def sentences(trainings: pd.DataFrame) -> list[str]:
    """Return the findings, what contradicts a paper first."""
    return [*_on_claims(trainings), *_on_optimizers(trainings), *_on_mitigations(trainings)]


def _on_claims(trainings: pd.DataFrame) -> Iterator[str]:
    table = verdicts(trainings)
    for (verdict, claim, source), rows in table.groupby(["verdict", "claim", "source"], sort=False):
        whole = table[table["claim"] == claim]
        where = "; ".join(
            f"{row.proxy}, {row.optimizer}, {row.stages} stages, {row.rates}: {_nats(row.excess)} "
            f"± {row.error:.3f} (p {row.p:.1g})"
            for row in rows.itertuples()
        )
        share = f"{len(rows)} of {len(whole)} comparisons {_verb(verdict)}"
        yield f"{share} “{claim}” ({source}): {where} (measured)."


def _on_optimizers(trainings: pd.DataFrame) -> Iterator[str]:
    table = comparison.summary(trainings)
    own = table[(table["at"] == OWN) & table["method"].isin(["2bw", "pipedream"])]
    for (proxy, arm), rows in own.groupby(["proxy", "arm"], sort=False):
        if len(rows) > 1:
            ordered = rows.sort_values("cost")
            costs = ", ".join(
                f"{row.optimizer} {_nats(row.cost)} ± {row.error:.3f}"
                for row in ordered.itertuples()
            )
            yield f"Delay's cost on {proxy} with {arm}, each at its own rate: {costs} (measured)."


def _on_mitigations(trainings: pd.DataFrame) -> Iterator[str]:
    table = comparison.summary(trainings)
    saved = comparison.recovered(table).sort_values("saved", ascending=False)
    for (proxy, optimizer), rows in saved.groupby(comparison.SETTING, sort=False):
        parts = ", ".join(f"{row.arm} {row.saved:.0%} of {row.of}'s" for row in rows.itertuples())
        yield f"Of delay's cost on {proxy} with {optimizer}, saved: {parts} (measured)."


def counts(trainings: pd.DataFrame) -> str:
    """Return how many trainings there are, how long they took, and how short each is."""
    hours = trainings["cpu_s"].sum() / 3600
    judged = comparison.judged(trainings)
    arms = judged.loc[judged["at"] == OWN, ARM].drop_duplicates()
    lengths = trainings[["proxy", "updates", "batch_rows"]].drop_duplicates()
    each = "; ".join(
        f"{proxy}: {updates} updates of {rows} samples"
        for proxy, updates, rows in lengths.itertuples(index=False)
    )
    return (
        f"{len(trainings)} trainings, {hours:.2f} hours of CPU time (measured), "
        f"{len(arms)} complete arms ({each})"
    )


def _verb(verdict: str) -> str:
    return {CONTRADICTS: "contradict", AGREES: "agree with"}[verdict]


def _nats(excess: float) -> str:
    return "diverged" if math.isinf(excess) else f"{excess:+.3f} nats"
