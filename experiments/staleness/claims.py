"""What papers say of stale weights, and whether the sweep agrees: each claim in each setting.

A claim is judged by the paired differences of the final validation losses (:mod:`.paired`), and by
a margin: the standard deviation over seeds of the other method's loss.  A difference within it is
negligible, since another seed would make as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.comparison import OWN, SYNCS
from experiments.staleness.methods import SYNC
from experiments.staleness.paired import LEVEL, holm

CONTRADICTS, AGREES, UNDECIDED = "contradicts", "agrees", "undecided"
HIGHER, LOWER, NOT_HIGHER, SAME = "higher", "lower", "not higher", "same"


@dataclass(frozen=True)
class PaperClaim:
    """What a paper says of a method beside another one, as a sign of its excess in loss.

    Attributes:
        name: ours.
        source: paper and section.
        text: what it says, with what was put in or left out in brackets.
        method: whose loss.
        other: beside which.
        expected: what follows for the loss: one of :data:`HIGHER`, :data:`LOWER`,
            :data:`NOT_HIGHER`, :data:`SAME`.
        optimizer: the only one that it is about; empty: any.
        other_optimizer: that of the other method, if it is not the same.
    """

    name: str
    source: str
    text: str
    method: str
    other: str
    expected: str
    optimizer: str = ""
    other_optimizer: str = ""

    def verdict(self, told: float, above: bool, below: bool) -> str:
        """Return whether a comparison agrees with the paper.

        Args:
            told: the excess if it is told from none, else 0.
            above: whether the excess is shown to be less than the margin.
            below: likewise, to be more than minus the margin.
        """
        higher, lower = told > 0 and not above, told < 0 and not below
        agrees, contradicts = {
            HIGHER: (higher, lower or above),
            LOWER: (lower, higher or below),
            NOT_HIGHER: (lower or above, higher),
            SAME: (above and below, higher or lower),
        }[self.expected]
        return CONTRADICTS if contradicts else AGREES if agrees else UNDECIDED


_ONE_STEP = "Zmushko et al. (2026), abstract"
CLAIMS = (
    PaperClaim(
        "2bw",
        "PipeDream-2BW, sections 1 and 5.1",
        "[2BW] has empirically similar model convergence to vanilla weight updates",
        "2bw",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "pipedream",
        "PipeDream, section 3.4",
        "PipeDream's default semantics (weight stashing but no vertical sync) are between regular "
        "minibatched SGD on a single machine, and data parallelism with BSP synchronization",
        "pipedream",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "stashing",
        "PipeDream, section 3.4",
        "weight stashing is critical for meaningful learning",
        "no-stashing",
        "pipedream",
        HIGHER,
    ),
    PaperClaim(
        "vertical-sync",
        "PipeDream, section 3.4, footnote 4",
        "the impact of vertical sync is negligible",
        "vertical-sync",
        "pipedream",
        SAME,
    ),
    PaperClaim(
        "adamw",
        _ONE_STEP,
        "AdamW [...] indeed suffers from severe degradation [under one-step delay]",
        "2bw",
        SYNC,
        HIGHER,
        optimizer="adamw",
    ),
    PaperClaim(
        "muon",
        _ONE_STEP,
        "recent methods like Muon exhibit strong robustness under a one-step delay",
        "2bw",
        SYNC,
        NOT_HIGHER,
        optimizer="muon",
    ),
    PaperClaim(
        "error-feedback",
        _ONE_STEP,
        "an [...] Error Feedback-inspired correction to further mitigate delay effects",
        "2bw-feedback",
        "2bw",
        LOWER,
    ),
    PaperClaim(
        "spectrain",
        "SpecTrain, abstract",
        "maintains comparable model accuracy",
        "spectrain",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "pipemare",
        "PipeMare, abstract",
        "similar model quality, when compared to state-of-the-art synchronous PP training",
        "pipemare",
        SYNC,
        NOT_HIGHER,
    ),
    PaperClaim(
        "nesterov",
        "Ajanthan et al. (2025), abstract",
        "[NAdam on PipeDream is] even surpassing the synchronous baseline",
        "pipedream",
        SYNC,
        LOWER,
        optimizer="nadam",
        other_optimizer="adamw",
    ),
    PaperClaim(
        "paci",
        "PACI, abstract",
        "PACI matches the stability and final perplexity of synchronous 1F1B-flush",
        "paci",
        SYNC,
        NOT_HIGHER,
    ),
)

COLUMNS = ["verdict", "name", "claim", "source", "proxy", "optimizer", "stages", "rates", "seeds"]
COLUMNS += ["excess", "low", "high", "margin", "effect", "p", "p_holm"]


def verdicts(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return each claim in each setting that was trained, contradictions first.

    Columns: ``verdict``, ``name``, ``claim``, ``source``, proxy, optimizer, stages, ``rates`` (each
    at its own, or both at that of no delay, which is how the papers compare), ``seeds``,
    ``excess`` (nats of the final validation loss, mean over seeds) with its interval ``low`` to
    ``high``, ``margin``, ``effect`` (the excess over the margin), ``p`` of the comparison alone and
    ``p_holm`` among all of this table.
    """
    asked = [(claim, key, pair) for claim in CLAIMS for key, pair in _pairs(claim, trainings)]
    pairs = {key: pair for _, key, pair in asked}  # two claims may ask for one comparison
    tests = pd.DataFrame(
        {
            "p": pair.found.p,
            "above": pair.found.p_above(pair.spread),
            "below": pair.found.p_below(-pair.spread),
        }
        for pair in pairs.values()
    ).set_axis(pd.Index([*pairs], tupleize_cols=False))
    corrected = tests.apply(holm)
    rows = []
    for claim, key, (*setting, found, spread) in asked:
        told = corrected.loc[[key]].iloc[0] < LEVEL
        verdict = claim.verdict(found.mean * told["p"], told["above"], told["below"])
        values = (found.seeds, found.mean, found.low, found.high, spread, found.mean / spread)
        p = found.p, corrected.loc[[key], "p"].item()
        rows.append((verdict, claim.name, claim.text, claim.source, *setting, key[-1], *values, *p))
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = [CONTRADICTS, UNDECIDED, AGREES]
    return table.sort_values(
        "verdict", key=lambda verdict: verdict.map(order.index), kind="stable", ignore_index=True
    )


def _pairs(
    claim: PaperClaim, trainings: pd.DataFrame
) -> Iterator[tuple[tuple[str | int, ...], comparison.Pair]]:
    """Yield the comparisons that decide a claim, each with what it is and is not of."""
    both = claim.other == SYNC and not claim.other_optimizer
    for at in (OWN, SYNCS) if both else (OWN,):
        for pair in comparison.against(
            trainings, claim.method, claim.other, claim.other_optimizer or None, at
        ):
            if pair.optimizer == (claim.optimizer or pair.optimizer):
                beside = claim.method, claim.other, claim.other_optimizer
                yield (*beside, pair.proxy, pair.optimizer, pair.stages, at), pair
