"""Figure 13: model parallelism, a straight pipeline, and PipeDream (section 5.3)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream.cause_names import NOMINAL, TOO_FEW_IN_FLIGHT
from experiments.pipedream.table1 import speeds
from experiments.pipedream.table1.changes import INSTEAD
from experiments.pipedream.table1.predictions import Prediction
from experiments.pipedream.table1.rows import TABLE1, Setting
from experiments.pipedream.table1.runs import Emulator, Runs, weakest
from experiments.pipedream.table1.speeds import Result
from experiments.recorded.findings import Finding
from experiments.study.figures import named_rows

ROWS = TABLE1[:2]
"""VGG16 on 4 and on 8 machines of Cluster-A."""

PRINTED = {
    4: {"BSP": 1.47, "straight pipeline": 2.56, "PipeDream": 3.14},
    8: {"BSP": 2.35, "straight pipeline": 3.49, "PipeDream": 7.04},
}
"""The paper's speedups by workers; it prints none for model parallelism."""


@dataclass(frozen=True)
class Figure13:
    """The four systems of Figure 13 on each of its rows, slowest first."""

    results: Mapping[str, Mapping[Setting, Result]]
    predictions: Mapping[Setting, Prediction]

    def speedup(self, system: str, row: Setting) -> float:
        """Return an emulated speedup over one machine."""
        return self.predictions[row].compute_s / self.results[system][row].seconds

    @property
    def label(self) -> str:
        """The weakest kind of its numbers."""
        return weakest(*(one for results in self.results.values() for one in results.values()))

    def only(self, number: int) -> "Figure13":
        """Return the same with one of its emulations."""
        return self._each(lambda result: result.only(number))

    @property
    def unrun(self) -> "Figure13":
        """The same as if nothing had been emulated."""
        return self._each(lambda result: result.unrun)

    def _each(self, changed: Callable[[Result], Result]) -> "Figure13":
        results = {
            system: {row: changed(result) for row, result in own.items()}
            for system, own in self.results.items()
        }
        return Figure13(results, self.predictions)

    def table(self) -> pd.DataFrame:
        """Return the speedups: the paper's, simulated and emulated; a row a system and row.

        At the nominal bandwidth, plans are those that the planner makes for it.
        "planned" and "2 x NOAM" say what the planner's formula and twice as many minibatches in
        flight make of the pipelines.
        """
        rows = []
        for row, (system, results) in product(ROWS, self.results.items()):
            one, result, more = self.predictions[row], results[row], {}
            alone = speeds.one_at_a_time if system == "model parallel" else speeds.pipelined
            nominal = result.plan
            if system != "BSP":  # planned for these links
                nominal = one.plan_on(one.nominal, replicate=system == "PipeDream")
            if system in ("straight pipeline", "PipeDream"):
                deep = one.speedup(result.plan, one.cluster, speeds.twice_in_flight)
                more = {"planned": one.compute_s / result.plan.predicted_s, "2 x NOAM": deep}
            rows.append(
                {
                    "row": f"{system}, {row.workers}",
                    "plan": result.plan.config,
                    "paper": PRINTED[row.workers].get(system),
                    "simulated": one.compute_s / result.simulated_s,
                    "emulated": self.speedup(system, row),
                    "simulated, nominal": one.speedup(nominal, one.nominal, alone),
                    **more,
                }
            )
        return pd.DataFrame(rows)

    def figure(self, table: pd.DataFrame) -> go.Figure:
        """Draw what :meth:`table` returned."""
        straight, ours = (self.results[name] for name in ("straight pipeline", "PipeDream"))
        ratios = (f"{straight[row].seconds / ours[row].seconds:.1f}" for row in ROWS)
        figure, _ = named_rows(
            table.set_index("row")[["paper", "simulated", "emulated"]],
            "speedup over one machine, VGG16 on 4 and 8 machines of Cluster-A",
            title=f"PipeDream is {' and '.join(ratios)} times as fast as straight pipelines",
            label="paper, simulated, emulated",
            apart=0.2,
        )
        return figure

    def least_step(self) -> float:
        """Return the least ratio of a system's speedup to that of the system before it."""
        return min(
            self.speedup(after, row) / self.speedup(before, row)
            for row in ROWS
            for before, after in pairwise(self.results)
        )

    def nominal_straight(self) -> tuple[int, str, float]:
        """Return workers, plan and simulated speedup of the straight one for 8 nominal machines."""
        one = self.predictions[ROWS[1]]
        chosen = one.plan_on(one.nominal, replicate=False)
        return chosen.workers, chosen.config, one.speedup(chosen, one.nominal)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Return what section 5.3 comes to, by :meth:`table`."""
        alone, line, ours = (
            [self.speedup(system, row) for row in ROWS]
            for system in ("model parallel", "straight pipeline", "PipeDream")
        )
        workers, _, nominal = self.nominal_straight()
        planned_on = self.results["straight pipeline"][ROWS[1]].plan.workers
        by_row = table.set_index("row").loc["straight pipeline, 4"]
        note = (
            f"transfers are not hidden by NOAM minibatches in flight: 4 workers planned "
            f"{by_row['planned']:.2f}, simulated {by_row['simulated']:.2f}, with 2 x NOAM "
            f"{by_row['2 x NOAM']:.2f}, with nominal links {by_row['simulated, nominal']:.2f}; the "
            f"planner uses {planned_on} of 8 workers, at the nominal bandwidth {workers} "
            f"({nominal:.2f} simulated): the bandwidth fitted on BSP's parameter server is too low "
            "for messages between two workers"
        )
        bars_of_paper = [max(alone), line[0], ours[0], line[1], ours[1]]
        straight = {row.workers: self.results["straight pipeline"][row] for row in ROWS}
        four, eight = weakest(straight[4]), weakest(straight[8])
        mp = weakest(*self.results["model parallel"].values())
        bars = Finding.of(
            "pipedream-fig13-bars", bars_of_paper, self.label, note, "figure13_bars.svg"
        )
        four_found = Finding.of("pipedream-sec53-straight-4", line[0], four, note)
        eight_found = Finding.of("pipedream-sec53-straight-8", line[1], eight, note)
        ordered = Finding.of("pipedream-sec53-ordering", self.least_step(), self.label, note)
        for cause, column in {TOO_FEW_IN_FLIGHT: "2 x NOAM", NOMINAL: "simulated, nominal"}.items():
            each = _bars(table, column)
            changed = INSTEAD[cause]
            bars = bars.because(cause, each, changed=changed)
            four_found = four_found.because(cause, each[1], changed=changed)
            eight_found = eight_found.because(cause, each[3], changed=changed)
            ordered = ordered.because(cause, _least_step(table, column), changed=changed)
        return [
            bars,
            Finding.of("pipedream-sec53-mp-below-1", alone, mp),
            four_found,
            eight_found,
            ordered,
        ]


def _changed(table: pd.DataFrame, column: str) -> pd.Series:
    """Return every system's speedup with one thing changed, as simulated where that does nothing.

    The index is as :meth:`Figure13.table` names rows, slowest system first.
    """
    return table[column].fillna(table["simulated"]).set_axis(table["row"])


def _least_step(table: pd.DataFrame, column: str) -> float:
    """Return :meth:`Figure13.least_step` with one thing changed."""
    changed = _changed(table, column)
    systems = list(dict.fromkeys(name.rpartition(", ")[0] for name in changed.index))
    return min(
        float(changed[f"{after}, {row.workers}"] / changed[f"{before}, {row.workers}"])
        for row in ROWS
        for before, after in pairwise(systems)
    )


def _bars(table: pd.DataFrame, column: str) -> list[float]:
    """Return the figure's bars with one thing changed."""
    changed = _changed(table, column)
    alone = max(changed[f"model parallel, {row.workers}"] for row in ROWS)
    rest = [changed[f"{name}, {n}"] for n in (4, 8) for name in ("straight pipeline", "PipeDream")]
    return [float(each) for each in (alone, *rest)]


def emulate_all(runs: Mapping[Setting, Runs], emulator: Emulator) -> Figure13:
    """Emulate what Table 1's own runs lack; equal plans are emulated once."""
    predictions = {row: runs[row].prediction for row in ROWS}
    count, found = emulator.minibatches, dict[tuple[int, ...], tuple[Result, Result]]()
    both = {}
    for row, one in predictions.items():
        plan = one.plan_on(one.cluster, replicate=False)
        if (cut := tuple(plan.balance)) not in found:
            line = emulator.run(one, plan, count)
            found[cut] = line, emulator.run(one, plan, count // 2, speeds.one_at_a_time)
        both[row] = found[cut]
    results = {
        "model parallel": {row: alone for row, (_, alone) in both.items()},
        "BSP": {row: runs[row].bsp for row in ROWS},
        "straight pipeline": {row: straight for row, (straight, _) in both.items()},
        "PipeDream": {row: runs[row].pipedream for row in ROWS},
    }
    return Figure13(results, predictions)
