"""The planner's depths for the paper's models beside the paper's (PipeDream-2BW, 4 and 5.2)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream_2bw.planner.checks import Problem, simulated_rate
from experiments.pipedream_2bw.planner.findings import ROWS
from experiments.pipedream_2bw.profiles import ProfileOf, gpt_profile, headless_profile
from experiments.pipedream_2bw.settings import OPTIMIZER_STATES
from experiments.recorded.findings import Finding
from pipekit import plots
from pipekit.clusters.papers import two_bw_v100
from pipekit.plans import Plan
from pipekit.units import bytes_text

DEPTHS = [2, 3, 4, 6, 8, 12, 16, 24, 48]
"""Those that divide 48 blocks."""

SYSTEM_BYTES = 2 * 2**30
"""Of a device, for what is in no formula: CUDA's context, its libraries' workspaces, fragments.

No source says how many: these are enough to change what the planner chooses, 1 GiB is not.
"""

MEMORY = "all of a device's memory is the planner's"
"""What lets the planner choose pipelines too shallow; the other way leaves out the system's."""


def problem(size: str, servers: int, batch: int, profile_of: ProfileOf = gpt_profile) -> Problem:
    """Return what the planner is asked for one of the paper's models, on servers of 8 GPUs."""
    profiles = {rows: profile_of(size, rows) for rows in ROWS if rows <= batch}
    return Problem(profiles, two_bw_v100(servers), batch, OPTIMIZER_STATES)


def equal_blocks(asked: Problem) -> pd.DataFrame:
    """Return the rows of a problem's sweep whose stages have equally many blocks."""
    table = asked.sweep()
    return table[table["depth"].isin(DEPTHS)]


def best_by_depth(asked: Problem) -> pd.DataFrame:
    """Return the fastest configuration that fits, for each of :data:`DEPTHS`."""
    table = equal_blocks(asked)
    return table.loc[table.groupby("depth")["throughput"].idxmax()].set_index("depth", drop=False)


@dataclass(frozen=True)
class PaperModel:
    """A model of section 5.2 on servers of 8 GPUs; its claim is about the paper's depth."""

    size: str
    servers: int
    batch: int
    depth: int
    claim: str | None = None

    @property
    def name(self) -> str:
        """The model and its GPUs."""
        return f"{self.size}, {8 * self.servers} GPUs"

    @cached_property
    def asked(self) -> Problem:
        """What the planner is asked."""
        return problem(self.size, self.servers, self.batch)

    @cached_property
    def plan(self) -> Plan:
        """The planner's answer, with unequal blocks too."""
        return self.asked.plan()

    @cached_property
    def choices(self) -> pd.DataFrame:
        """The best configuration of every depth with equal blocks."""
        return best_by_depth(self.asked)

    @property
    def best(self) -> int:
        """The depth of the fastest one."""
        return int(self.choices["throughput"].idxmax())

    @property
    def ratio(self) -> float:
        """The best step time with the paper's depth over the best of all, unequal blocks too."""
        return self._ratio_of_all(self.asked)

    def _ratio_of_all(self, asked: Problem) -> float:
        table = asked.sweep()
        own = table.loc[table["depth"] == self.depth, "throughput"].max()
        return float(table["throughput"].max() / own)

    def _ratio(self, table: pd.DataFrame) -> float:
        return float(table["throughput"].max() / table.loc[self.depth, "throughput"])

    def finding(self) -> Finding:
        """Return the step time with the paper's depth over that of the best one, and why."""
        assert self.claim is not None
        asked, own, best = self.asked, self.choices, self.best
        equal = self._ratio(
            best_by_depth(problem(self.size, self.servers, self.batch, headless_profile))
        )
        device = asked.cluster.device
        smaller = replace(device, memory_bytes=device.memory_bytes - SYSTEM_BYTES)
        less = asked._replace(cluster=replace(asked.cluster, device=smaller))
        by_events = [simulated_rate(asked, own.loc[depth]) for depth in (best, self.depth)]
        note = (
            f"{self.name}: the planner takes d = {len(self.plan.stages)}, w = "
            f"{self.plan.replicas[0]}, with unequal blocks. Of the depths with equal blocks d = "
            f"{best} is the fastest, {self._ratio(own):.2f} times as fast as the paper's, with "
            f"{bytes_text(own.loc[best, 'memory_bytes'])} of "
            f"{bytes_text(device.memory_bytes)}; as if the logits, which are on the last stage, "
            f"took no time {equal:.2f}. The cost model hides the sums of gradients "
            "under the whole batch; event by event, where they share links with the activations, "
            f"the two depths are at {by_events[0]:.0f} and {by_events[1]:.0f} sequences/s"
        )
        found = Finding.simulated(self.claim, self.ratio, note, "depths.svg")
        instead = f"{bytes_text(SYSTEM_BYTES)} of it are the system's"
        return found.because(MEMORY, self._ratio_of_all(less), changed=instead)


MODELS = (
    PaperModel("2.2B", 1, 64, 8),
    PaperModel("2.2B", 8, 512, 8, "2bw-sec52-planner-8deep"),
    PaperModel("3.8B", 8, 512, 16, "2bw-sec52-planner-16deep"),
)
"""Figure 6's; the paper recommends 8 stages for 2.2 billion parameters and 16 for 3.8 (5.2)."""


def choices() -> pd.DataFrame:
    """Return :attr:`PaperModel.choices` of all :data:`MODELS`, named by the column "model"."""
    return pd.concat([model.choices.assign(model=model.name) for model in MODELS])


def depth_figure(table: pd.DataFrame) -> go.Figure:
    """Draw the throughput of every depth of :func:`choices`."""
    best = (model.best for model in MODELS)
    title = "Fastest with equal blocks: {}, {} and {} stages; the paper's 8, 8 and 16".format(*best)
    x, y = "stages of a pipeline, d", "sequences/s"
    drawn = table.rename(columns={"depth": x, "throughput": y})
    figure = plots.points(drawn, x, y, "model", title=title, label="simulated")
    figure.update_xaxes(type="log", tickvals=DEPTHS, ticktext=DEPTHS, range=[0.4, 1.75])
    return figure.update_yaxes(range=[0, 1.1 * drawn[y].max()])


def findings() -> list[Finding]:
    """Return how the paper's depths compare with the best."""
    return [model.finding() for model in MODELS if model.claim]


def rows_finding() -> Finding:
    """Return the largest microbatch of each depth, recomputing."""
    table = equal_blocks(problem("2.2B", 8, 4096))
    rows: Mapping[bool, pd.Series] = table.groupby(["recompute", "depth"])["microbatch_rows"].max()
    again, kept = rows[True], rows[False]
    note = (
        f"2.2B, powers of two, recomputing, d = {again.index.tolist()}; without recomputation "
        f"{kept.tolist()} at d = {kept.index.tolist()}"
    )
    return Finding.simulated("2bw-planner-deeper-larger-b", again.tolist(), note)
