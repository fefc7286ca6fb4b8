"""Every row of Table 1 on the real engine: speedups and bytes beside the paper's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import pandas as pd
import plotly.graph_objects as go
from tqdm.auto import tqdm

from pipekit import plots
from pipekit.papers.pipedream.table1 import speeds, traffic
from pipekit.papers.pipedream.table1.bars import bars
from pipekit.papers.pipedream.table1.predictions import Prediction
from pipekit.papers.pipedream.table1.rows import CALIBRATED_ON, TABLE1, Setting, printed_number
from pipekit.papers.pipedream.table1.speeds import Result
from pipekit.plans import Plan

CLOSE = 0.15
"""How far a predicted speedup may be from the paper's to count as met, relatively."""

FITTED = frozenset(CALIBRATED_ON[row.model, row.cluster] for row in TABLE1)
"""The rows whose BSP cell is no prediction."""


@dataclass(frozen=True)
class Runs:
    """A row, emulated.

    Attributes:
        prediction: what was predicted.
        bsp: data parallelism on all workers.
        pipedream: the planner's plan.
    """

    prediction: Prediction
    bsp: Result
    pipedream: Result

    @property
    def bsp_speedup(self) -> float:
        """Data parallelism's emulated speedup over one machine."""
        return self.prediction.compute_s / self.bsp.emulated_s

    @property
    def speedup(self) -> float:
        """The plan's emulated speedup over one machine."""
        return self.prediction.compute_s / self.pipedream.emulated_s

    @property
    def over_bsp(self) -> float:
        """How many times as fast as data parallelism the plan is."""
        return self.bsp.emulated_s / self.pipedream.emulated_s

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


@dataclass(frozen=True)
class Emulator:
    """How long and how fast plans are emulated.

    Attributes:
        minibatches: in a pipeline's steady state, at least; half of them for BSP.
        faster: by what factor time runs faster.
        repeats: emulations of each plan, of which the median counts.
    """

    minibatches: int
    faster: float
    repeats: int

    def all_rows(self, predictions: Iterable[Prediction]) -> dict[Setting, Runs]:
        """Return each row's runs."""
        found = {}
        for one in tqdm(list(predictions), desc="emulating", unit="row"):
            run = partial(self.run, one)
            data_parallel = speeds.data_parallel(one.profile, one.setting.workers)
            bsp = run(data_parallel, self.minibatches // 2)
            same = one.plan.config == data_parallel.config
            found[one.setting] = Runs(one, bsp, bsp if same else run(one.plan, self.minibatches))
        return found

    def run(
        self,
        one: Prediction,
        plan: Plan,
        minibatches: int,
        method: speeds.Method = speeds.pipelined,
    ) -> Result:
        """Return a plan of a row, simulated and emulated."""
        return speeds.run(
            one.profile,
            plan,
            one.cluster,
            method=method,
            minibatches=minibatches,
            faster=self.faster,
            repeats=self.repeats,
        )


def speedups(runs: Mapping[Setting, Runs]) -> pd.DataFrame:
    """Return the speedups over one machine: emulated, simulated and the paper's."""
    rows = []
    for setting, found in runs.items():
        compute_s = found.prediction.compute_s
        rows.append(
            {
                "row": setting.name,
                "BSP": found.bsp_speedup,
                "BSP (simulated)": compute_s / found.bsp.simulated_s,
                "BSP (paper)": printed_number(setting, "bsp-speedup"),
                "plan": found.prediction.plan.config,
                "PipeDream": found.speedup,
                "PipeDream (simulated)": compute_s / found.pipedream.simulated_s,
                "PipeDream (paper)": printed_number(setting, "pp-speedup"),
                "over BSP": found.over_bsp,
                "over BSP (paper)": printed_number(setting, "pp-over-bsp"),
            }
        )
    return pd.DataFrame(rows)


def speedup_points(table: pd.DataFrame) -> pd.DataFrame:
    """Return the speedups of Table 1's rows as points, a place for each row and system.

    Args:
        table: of :func:`speedups`.
    """
    return pd.DataFrame(
        {
            "row": f"{setting.name} {system}",
            "place": 2 * place + (system == "PipeDream") + offset,
            "speedup": row[column],
            "number": number,
        }
        for place, (setting, (_, row)) in enumerate(zip(TABLE1, table.iterrows(), strict=False))
        for system in ("BSP", "PipeDream")
        for number, column, offset in (
            ("paper", f"{system} (paper)", -0.2),
            ("simulated", f"{system} (simulated)", 0),
            ("emulated", system, 0.2),
        )
    )


def speedup_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`speedup_points`; the title counts the predictions that are close to the paper."""
    rows = table[table["row"].isin([setting.name for setting in TABLE1])].set_index("row")
    names = [setting.name for setting in TABLE1 if setting not in FITTED]
    ratios = pd.concat(
        [
            rows.loc[names, "BSP"] / rows.loc[names, "BSP (paper)"],
            rows["PipeDream"] / rows["PipeDream (paper)"],
        ]
    )
    met = int(((ratios - 1).abs() <= CLOSE).sum())
    points = speedup_points(table)
    figure = plots.points(
        points,
        x="speedup",
        y="place",
        color="number",
        title=f"{met} of the {len(ratios)} predicted speedups of Table 1 are within {CLOSE:.0%}",
        label="paper, simulated, emulated",
        x_title="speedup over one machine",
        y_title=" ",
    )
    named = points[points["number"] == "simulated"]
    figure.update_yaxes(tickvals=named["place"], ticktext=named["row"], range=[13.6, -0.6])
    figure.update_xaxes(range=[0, 1.05 * points["speedup"].max()])
    return figure.update_layout(margin={"l": 170}, height=480)


def communication(runs: Mapping[Setting, Runs]) -> pd.DataFrame:
    """Return the bytes that the engine counted, and by how much less a plan sends than BSP.

    Raises:
        RuntimeError: the engine's counters and the closed form do not agree to the byte.
    """
    rows = []
    for setting, found in runs.items():
        if max(abs(found.bsp.excess), abs(found.pipedream.excess)) >= 0.5:
            raise RuntimeError(f"{setting.name}: the engine sent other bytes than the closed form")
        rows.append(
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
                "paper's configuration (%)": found.saved_by_paper_plan
                if setting in TABLE1
                else None,
            }
        )
    return pd.DataFrame(rows)


def communication_figure(table: pd.DataFrame) -> go.Figure:
    """Draw what :func:`communication` returned for the rows of Table 1."""
    rows = table[table["row"].isin([setting.name for setting in TABLE1])]
    shown = ["paper (%)", "all counted alike (%)", "activations once (%)"]
    return bars(
        rows.melt("row", shown, "source", "value"),
        title=f"PipeDream sends up to {rows['all counted alike (%)'].max():.0f} % less than data "
        "parallelism",
        label="paper, emulated",
        x_title="communication reduction over BSP (%)",
    )
