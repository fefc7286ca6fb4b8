"""Every row of Table 1 on the real engine: speedups and bytes beside the paper's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream.table1 import speeds, traffic
from experiments.pipedream.table1.predictions import Prediction
from experiments.pipedream.table1.rows import FITTED, TABLE1, Setting, printed_number
from experiments.pipedream.table1.speeds import Result
from experiments.study.figures import named_rows
from pipekit.plans import Plan
from pipekit.progress import progress_bar

CLOSE = 0.15
"""How far a predicted speedup may be from the paper's to count as met, relatively."""

_NAMES = [row.name for row in TABLE1]


@dataclass(frozen=True)
class Runs:
    """A row, emulated: data parallelism on all workers, and the planner's plan."""

    prediction: Prediction
    bsp: Result
    pipedream: Result

    @property
    def label(self) -> str:
        """The weaker of both kinds of seconds."""
        return weakest(self.bsp, self.pipedream)

    def only(self, number: int) -> "Runs":
        """Return the same with one of its emulations."""
        return Runs(self.prediction, self.bsp.only(number), self.pipedream.only(number))

    @property
    def unrun(self) -> "Runs":
        """The same as if nothing had been emulated."""
        return Runs(self.prediction, self.bsp.unrun, self.pipedream.unrun)

    @property
    def bsp_speedup(self) -> float:
        """Data parallelism's emulated speedup over one machine."""
        return self.prediction.compute_s / self.bsp.seconds

    @property
    def speedup(self) -> float:
        """The plan's emulated speedup over one machine."""
        return self.prediction.compute_s / self.pipedream.seconds

    @property
    def over_bsp(self) -> float:
        """How many times as fast as data parallelism the plan is."""
        return self.bsp.seconds / self.pipedream.seconds

    @property
    def saved(self) -> float:
        """By how many percent fewer bytes the plan sends, all counted alike."""
        return 100 * traffic.reduction(self.pipedream.sent, self.bsp.sent)

    @property
    def saved_activations_once(self) -> float:
        """The same with activations counted at one end of a link and weights at both."""
        return 100 * traffic.reduction(self.pipedream.sent, self.bsp.sent, activations_once=True)

    @property
    def saved_by_paper_plan(self) -> float:
        """By how many percent fewer the paper's configuration would send, cut as well as can be."""
        one = self.prediction
        return 100 * traffic.reduction(traffic.sent(one.profile, one.paper_plan), self.bsp.sent)

    @property
    def excess(self) -> float:
        """Bytes a minibatch that the engine counted beyond the closed form, in both runs."""
        return self.pipedream.excess + self.bsp.excess


def weakest(*results: Result) -> str:
    """Return "simulated" if the emulations of any do not count, else "emulated"."""
    return "emulated" if all(each.timed.counted for each in results) else "simulated"


def rounds(runs: Mapping[Setting, Runs], repeats: int) -> list[dict[Setting, Runs]]:
    """Return the runs of each round of emulations alone."""
    return [{row: found.only(n) for row, found in runs.items()} for n in range(repeats)]


@dataclass(frozen=True)
class Emulator:
    """How plans are emulated: minibatches in steady state (half for BSP), pace, repeats."""

    minibatches: int
    faster: float
    repeats: int

    def all_rows(self, predictions: Iterable[Prediction]) -> dict[Setting, Runs]:
        """Return each row's runs."""
        found = {}
        for one in progress_bar(list(predictions), desc="emulating", unit="row"):
            data_parallel = speeds.data_parallel(one.profile, one.setting.workers)
            bsp = self.run(one, data_parallel, self.minibatches // 2)
            same = one.plan.config == data_parallel.config
            ours = bsp if same else self.run(one, one.plan, self.minibatches)
            found[one.setting] = Runs(one, bsp, ours)
        return found

    def run(
        self, one: Prediction, plan: Plan, count: int, method: speeds.Method = speeds.pipelined
    ) -> Result:
        """Return a plan of a row, simulated and emulated for so many minibatches."""
        how = count, self.faster, self.repeats
        return speeds.run(one.profile, plan, one.cluster, *how, method)


def speedups(runs: Mapping[Setting, Runs]) -> pd.DataFrame:
    """Return the speedups over one machine: emulated, simulated and the paper's."""
    return pd.DataFrame(
        {
            "row": setting.name,
            "BSP": found.bsp_speedup,
            "BSP (simulated)": found.prediction.compute_s / found.bsp.simulated_s,
            "BSP (paper)": printed_number(setting, "bsp-speedup"),
            "plan": found.prediction.plan.config,
            "PipeDream": found.speedup,
            "PipeDream (simulated)": found.prediction.compute_s / found.pipedream.simulated_s,
            "PipeDream (paper)": printed_number(setting, "pp-speedup"),
            "over BSP": found.over_bsp,
            "over BSP (paper)": printed_number(setting, "pp-over-bsp"),
        }
        for setting, found in runs.items()
    )


def speedup_figure(table: pd.DataFrame) -> tuple[go.Figure, pd.DataFrame]:
    """Draw the :func:`speedups` of Table 1's rows, and count those close to the paper's."""
    rows = table.set_index("row").loc[_NAMES]
    both = {
        f"{name} {system}": {
            "paper": row[f"{system} (paper)"],
            "simulated": row[f"{system} (simulated)"],
            "emulated": row[system],
        }
        for name, row in rows.iterrows()
        for system in ("BSP", "PipeDream")
    }
    numbers = pd.DataFrame(both).T
    predicted = numbers.drop([f"{setting.name} BSP" for setting in FITTED])
    met = ((predicted["emulated"] / predicted["paper"] - 1).abs() <= CLOSE).sum()
    figure, points = named_rows(
        numbers,
        "speedup",
        title=f"{met} of the {len(predicted)} predicted speedups of Table 1 are within {CLOSE:.0%}",
        label="paper, simulated, emulated",
        x_title="speedup over one machine",
        apart=0.2,
    )
    return figure.update_layout(margin={"l": 170}, height=480), points


def communication(runs: Mapping[Setting, Runs]) -> pd.DataFrame:
    """Return the bytes that the engine counted; others than the closed form's are an error."""
    for setting, found in runs.items():
        if max(abs(found.bsp.excess), abs(found.pipedream.excess)) >= 0.5:
            raise RuntimeError(f"{setting.name}: the engine sent other bytes than the closed form")
    return pd.DataFrame(
        {
            "row": setting.name,
            "plan": found.prediction.plan.config,
            "BSP (MB a minibatch)": found.bsp.sent.total / 1e6,
            "weights (MB)": found.pipedream.sent.weights / 1e6,
            "activations (MB)": found.pipedream.sent.activations / 1e6,
            "engine minus closed form (bytes)": found.excess,
            "all counted alike (%)": found.saved,
            "activations once (%)": found.saved_activations_once,
            "paper (%)": printed_number(setting, "comm-reduction"),
            "paper's configuration (%)": found.saved_by_paper_plan if setting in TABLE1 else None,
        }
        for setting, found in runs.items()
    )


def communication_figure(table: pd.DataFrame) -> go.Figure:
    """Draw what :func:`communication` returned for the rows of Table 1."""
    shown = ["paper (%)", "all counted alike (%)", "activations once (%)"]
    rows = table.set_index("row").loc[_NAMES, shown]
    most = rows["all counted alike (%)"].max()
    figure, _ = named_rows(
        rows,
        "communication reduction over BSP (%)",
        title=f"PipeDream sends up to {most:.0f} % less than data parallelism",
        label="paper, emulated",
        apart=0.2,
    )
    return figure
