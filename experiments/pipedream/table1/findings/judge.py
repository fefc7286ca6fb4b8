"""All results of Table 1 that its findings rest on, and what is known of its rows, in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from experiments.pipedream.cause_names import GUESSED_LAYERS, OWN_BANDWIDTH, PLAN
from experiments.pipedream.table1.causes import Slowness
from experiments.pipedream.table1.changes import INSTEAD, UNCHANGED, Change
from experiments.pipedream.table1.rows import TABLE1, THROUGHPUT, Setting
from experiments.pipedream.table1.runs import Runs, weakest
from experiments.recorded.findings import Finding
from pipekit.units import bytes_text

FOUR, EIGHT, SIXTEEN, EIGHT_B, INCEPTION, INCEPTION_B, S2VT = TABLE1
RESNET, ALEXNET = THROUGHPUT

PLANNERS, PAPERS = "planner's", "paper's"
"""Whose configuration a row of the causes has."""

Valued = Callable[[list[Change]], Any]
"""What a claim's value is, from the changed rows that it speaks of."""

BSP_FITTED = OWN_BANDWIDTH, GUESSED_LAYERS
"""Changes that say nothing of a BSP speedup that is in the fit: they fit it otherwise."""

BSP_GIVEN, PLAN_GIVEN = (OWN_BANDWIDTH,), (PLAN,)
"""Changes that put in BSP's speedup, and what the planner chooses."""


def bsp(rows: list[Change]) -> float:
    """Return the BSP speedup of the first row."""
    return rows[0].bsp_speedup


def over_bsp(rows: list[Change]) -> float:
    """Return the plan's speedup of the first row over BSP's."""
    return rows[0].over_bsp


def finding(
    claim: str, value: Any, note: str = "", figure: str | None = None, label: str = "emulated"
) -> Finding:
    """Return a finding of a claim of this paper."""
    return Finding.of(f"pipedream-{claim}", value, label, note, figure)


@dataclass(frozen=True)
class Judge:
    """All results of Table 1 and of :mod:`..causes`."""

    runs: Mapping[Setting, Runs]
    causes: pd.DataFrame
    slower: float
    slownesses: Sequence[Slowness]
    changes: Mapping[Setting, Sequence[Change]]

    def turned(
        self,
        found: Finding,
        rows: Sequence[Setting],
        value: Valued,
        circular: Sequence[str] = (),
    ) -> Finding:
        """Return a finding with its value under each change that all of some rows know.

        A change that is ``circular``, since it puts in what the claim says, is none; nor is one
        that leaves the simulated value as it is.
        """
        known = [{each.cause: each for each in self.changes[row]} for row in rows]
        unchanged = value([each[UNCHANGED] for each in known])
        for cause in known[0]:
            if cause in circular or not all(cause in each for each in known):
                continue
            changed = value([each[cause] for each in known])
            if changed != unchanged:
                found = found.because(cause, changed, changed=INSTEAD.get(cause, ""))
        return found

    @cached_property
    def borrowed(self) -> str:
        """What is known where a bandwidth fitted on other networks serves."""
        others = ", ".join(f"x {each.factor:.2f} beside {each.model}" for each in self.slownesses)
        return (
            f"one bandwidth serves all networks of a cluster, and one efficiency all networks "
            f"(compute x {self.slower:.2f} would meet Inception 8A's BSP; {others} by "
            f"cnn-benchmarks)"
        )

    @cached_property
    def s2vt_note(self) -> str:
        """Why S2VT misses."""
        found = self.runs[S2VT]
        return (
            f"our S2VT (the paper prints no layer sizes) sends "
            f"{bytes_text(found.pipedream.closed.activations)} of activations a minibatch, "
            f"all that Table 1's 95 % leaves is {bytes_text(0.05 * found.bsp.closed.total)}"
        )

    def cause(self, row: Setting) -> str:
        """Return what is known of a row's pipeline, for a note."""
        by = self.causes.set_index(["row", "configuration"])
        mine, theirs = (
            f"{one['replicas']}: planned {one['planned']:.2f}, simulated {one['simulated']:.2f}, "
            f"with 2 x NOAM{{}} {one['2 x NOAM']:.2f}"
            for one in (by.loc[(row.name, whose)] for whose in (PLANNERS, PAPERS))
        )
        text = f"plan {mine.format(' in flight')}; the paper's {theirs.format('')}"
        extra = {S2VT: self.s2vt_note, INCEPTION: self.borrowed}.get(row, "")
        links = f"the busiest link would allow {by.loc[(row.name, PLANNERS)]['links']:.1f}"
        return "; ".join(filter(None, [text, links, extra]))

    def weakest(self, *rows: Setting) -> str:
        """Return the weakest kind of the seconds of some rows."""
        both = ((self.runs[row].bsp, self.runs[row].pipedream) for row in rows)
        return weakest(*(one for pair in both for one in pair))
