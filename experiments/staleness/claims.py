"""What papers say of stale weights, and whether the sweep agrees: each claim in each setting.

A claim is judged by the paired differences of the final validation losses
(:class:`.comparison.Excess`), and by a margin: the standard deviation over seeds of the other
method's loss.  A difference within it is negligible, since another seed would make as much.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from experiments.staleness import comparison
from experiments.staleness.comparison import LEVEL, OWN, SYNCS, holm, plain
from experiments.staleness.methods import METHODS, SYNC

CONTRADICTS, AGREES, UNDECIDED = "contradicts", "agrees", "undecided"
ORDER = [CONTRADICTS, UNDECIDED, AGREES]
HIGHER, LOWER, NOT_HIGHER, SAME = "higher", "lower", "not higher", "same"
HELPS, HARMS = "helps", "harms"


class PaperClaim(NamedTuple):
    """What a paper says of a method beside another one, as a sign of its excess in loss."""

    name: str  # ours
    source: str  # paper and section
    text: str  # with what was put in or left out in brackets
    method: str  # whose loss
    other: str  # beside which
    expected: str  # of the loss: HIGHER, LOWER, NOT_HIGHER or SAME
    optimizer: str = ""  # the only one that it is about; empty: any
    other_optimizer: str = ""  # that of the other method, if it is not the same

    def verdict(self, told: float, above: bool, below: bool) -> str:
        """Return whether a comparison agrees: ``told`` is the excess if its sign is shown, else 0.

        ``above`` and ``below``: the excess is shown to be within that side of the margin.
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
_SIMILAR = "[2BW] has empirically similar model convergence to vanilla weight updates"
_BETWEEN = "PipeDream's default semantics (weight stashing but no vertical sync) are between "
_BETWEEN += "regular minibatched SGD on a single machine, and data parallelism with BSP "
_BETWEEN += "synchronization"
_CRITICAL = "weight stashing is critical for meaningful learning"
_NEGLIGIBLE = "the impact of vertical sync is negligible"
_ADAMW = "AdamW [...] indeed suffers from severe degradation [under one-step delay]"
_MUON = "recent methods like Muon exhibit strong robustness under a one-step delay"
_FEEDBACK = "an [...] Error Feedback-inspired correction to further mitigate delay effects"
_PIPEMARE = "similar model quality, when compared to state-of-the-art synchronous PP training"
_NESTEROV = "[NAdam on PipeDream is] even surpassing the synchronous baseline"
_PACI = "PACI matches the stability and final perplexity of synchronous 1F1B-flush"
_SECTION, _NOTE = "PipeDream, section 3.4", "PipeDream, section 3.4, footnote 4"
_AJANTHAN, _SPECTRAIN = "Ajanthan et al. (2025), abstract", "maintains comparable model accuracy"
_1_AND_5_1 = "PipeDream-2BW, sections 1 and 5.1"
CLAIMS = (
    PaperClaim("2bw", _1_AND_5_1, _SIMILAR, "2bw", SYNC, NOT_HIGHER),
    PaperClaim("pipedream", _SECTION, _BETWEEN, "pipedream", SYNC, NOT_HIGHER),
    PaperClaim("stashing", _SECTION, _CRITICAL, "no-stashing", "pipedream", HIGHER),
    PaperClaim("vertical-sync", _NOTE, _NEGLIGIBLE, "vertical-sync", "pipedream", SAME),
    PaperClaim("adamw", _ONE_STEP, _ADAMW, "2bw", SYNC, HIGHER, "adamw"),
    PaperClaim("muon", _ONE_STEP, _MUON, "2bw", SYNC, NOT_HIGHER, "muon"),
    PaperClaim("error-feedback", _ONE_STEP, _FEEDBACK, "2bw-feedback", "2bw", LOWER),
    PaperClaim("spectrain", "SpecTrain, abstract", _SPECTRAIN, "spectrain", SYNC, NOT_HIGHER),
    PaperClaim("pipemare", "PipeMare, abstract", _PIPEMARE, "pipemare", SYNC, NOT_HIGHER),
    PaperClaim("nesterov", _AJANTHAN, _NESTEROV, "pipedream", SYNC, LOWER, "nadam", "adamw"),
    PaperClaim("paci", "PACI, abstract", _PACI, "paci", SYNC, NOT_HIGHER),
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
    judged = comparison.judged(trainings)
    asked = [(claim, key, pair) for claim in CLAIMS for key, pair in _pairs(claim, judged)]
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
        values = (found.seeds, found.mean, *found.interval, spread, found.mean / spread)
        p = found.p, corrected.loc[[key], "p"].item()
        rows.append((verdict, claim.name, claim.text, claim.source, *setting, key[-1], *values, *p))
    table = pd.DataFrame(rows, columns=COLUMNS)
    place = {verdict: number for number, verdict in enumerate(ORDER)}
    by = table["verdict"].map(place)
    return table.loc[by.sort_values(kind="stable").index].reset_index(drop=True)


def _pairs(
    claim: PaperClaim, judged: pd.DataFrame
) -> Iterator[tuple[tuple[str | int, ...], comparison.Pair]]:
    """Yield the comparisons that decide a claim, each with what it is and is not of."""
    both = claim.other == SYNC and not claim.other_optimizer
    for at in (OWN, SYNCS) if both else (OWN,):
        for pair in comparison.against(
            judged, claim.method, claim.other, claim.other_optimizer or None, at
        ):
            if pair.optimizer == (claim.optimizer or pair.optimizer):
                beside = claim.method, claim.other, claim.other_optimizer
                yield (*beside, pair.proxy, pair.optimizer, pair.stages, at), pair


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
    for method in [name for name in METHODS if plain(name) != name]:
        of = plain(method)
        for proxy, optimizer, stages, found, _ in comparison.against(judged, method, of):
            cost = costs.get((proxy, optimizer, of, METHODS[method].depth(stages)), float("nan"))
            saved = -found.mean / cost if cost > 0 else float("nan")
            numbers = found.seeds, found.mean, *found.interval, saved, found.p
            rows.append((proxy, optimizer, method, of, stages, *numbers))
    names = ["proxy", "optimizer", "method", "of", "stages"]
    table = pd.DataFrame(rows, columns=[*names, "seeds", "excess", "low", "high", "saved", "p"])
    table["p_holm"] = holm(table["p"])
    told, better = table["p_holm"] < LEVEL, table["excess"] < 0
    verdict = pd.Series(UNDECIDED, index=table.index)
    verdict = verdict.mask(told & better, HELPS).mask(told & ~better, HARMS)
    table.insert(0, "verdict", verdict)
    return table
