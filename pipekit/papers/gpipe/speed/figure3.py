"""GPipe's Figure 3 simulated and emulated, beside what the paper prints of it (section 4.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.scenarios import naive
from pipekit.papers.gpipe.speed.bars import (
    ACCELERATORS,
    AMOEBANET,
    RESNET,
    Bar,
    bars,
    profile_of,
    simulated_speedups,
    sized,
    speedups,
)
from pipekit.papers.gpipe.speed.step_time import compute_bound
from pipekit.papers.repeats import emulated
from pipekit.progress import progress_bar
from pipekit.traces import Trace
from pipekit.units import bytes_text

PRINTED: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        AMOEBANET: {"naive-2": 1.0, "pipeline-8": 3.5},
        RESNET: {"naive-1": 1.0, "pipeline-1": 0.8, "pipeline-8": 3.0},
    }
)
"""Speedups that the text prints; the other bars are only drawn."""

TOLERANCE = 0.15
"""Of the ledger, for the last bar."""

CUT, CUT_BY_TIME, FUSED = "cut by operations", "cut by time", "all fused"
BY_OPERATIONS = "stages of equal operations, which do not take equal time"
"""What makes GPipe's speedups miss: the paper does not print the cut."""


@dataclass(frozen=True)
class Panel:
    """A panel of Figure 3."""

    network: str  # of :data:`pipekit.papers.gpipe.speed.bars.NETWORKS`
    bars: list[Bar]  # the baseline first
    slower: float  # how many times as slow as simulated everything was emulated
    traces: list[Trace]  # emulated, of each bar

    @property
    def label(self) -> str:
        """The weakest kind of its numbers: a simulated trace stands in where none counts."""
        return "emulated" if {t.label for t in self.traces} == {"emulated"} else "simulated"

    @property
    def emulated(self) -> list[float]:
        """Speedups of the bars over the first."""
        return speedups(self.bars, self.traces)

    @cached_property
    def unrun(self) -> "Panel":
        """The same with simulated traces alone."""
        return replace(self, traces=[bar.simulated() for bar in self.bars])

    @property
    def simulated(self) -> list[float]:
        """Speedups of the bars over the first, simulated."""
        return self.unrun.emulated

    @cached_property
    def by_time(self) -> list[float]:
        """The same, simulated and cut by time."""
        return simulated_speedups(bars(self.network, by="time"))

    @property
    def steps(self) -> dict[int, tuple[Bar, Trace]]:
        """The bar and its emulated step by K, for K above 1: what Figure 4 takes apart."""
        pairs = zip(self.bars, self.traces, strict=True)
        return {bar.scenario.stages: (bar, step) for bar, step in pairs if bar.scenario.stages > 1}


def emulate_panel(network: str, shortest_pass_ms: float, emulations: int) -> list[Panel]:
    """Run each bar of a panel on the real engine, one minibatch at a time, so often.

    All is slowed down until the shortest forward takes ``shortest_pass_ms``, and further where
    emulations part from the simulation; see :mod:`pipekit.papers.repeats`.
    """
    panel = bars(network)
    shortest_s = min(stage.forward_s for bar in panel for stage in bar.stages)
    slower = shortest_pass_ms / 1e3 / shortest_s
    traces = [
        _emulated(bar, slower, emulations) for bar in progress_bar(panel, desc=network, unit="bar")
    ]
    return [Panel(network, panel, slower, list(each)) for each in zip(*traces, strict=True)]


def median_panel(panels: Sequence[Panel]) -> Panel:
    """Return the panel of the median speedup on the most accelerators, to be drawn."""
    return sorted(panels, key=lambda panel: panel.emulated[-1])[len(panels) // 2]


def _emulated(bar: Bar, slower: float, emulations: int) -> list[Trace]:
    """Return the emulated minibatches of a bar that count, or as many simulated ones if none do."""
    simulated, runs = bar.simulated(), dict[float, Trace]()

    def run(pace: float) -> float:
        trace = bar.emulated(slower / pace)
        runs[trace.makespan_s] = trace
        return trace.makespan_s

    timed = emulated(run, simulated.makespan_s, emulations)
    return [runs[seconds] for seconds in timed.counted] or [simulated] * emulations


def sizes() -> pd.DataFrame:
    """Return a row a bar of both panels: its minibatch, memory, stages and their imbalance."""
    return pd.DataFrame(
        {
            "network": network,
            "scenario": bar.scenario.name,
            "images a minibatch": bar.scenario.minibatch,
            "GB at most": bar.peak_bytes / 1e9,
            "layers, by operations": " ".join(map(str, bar.plan.balance)),
            "slowest / mean": bar.imbalance,
            "layers, by time": " ".join(map(str, by_time.plan.balance)),
            "slowest / mean, by time": by_time.imbalance,
        }
        for network in ACCELERATORS
        for bar, by_time in zip(bars(network), bars(network, by="time"), strict=True)
    )


def needs_two() -> Finding:
    """Return how many GB AmoebaNet-D would take on one accelerator, with naive-2's minibatch."""
    two = bars(AMOEBANET)[0]
    images = two.scenario.minibatch
    alone, least = (sized(profile_of(AMOEBANET), naive(1), n).peak_bytes for n in (images, 1))
    an_image = (alone - least) / (images - 1)
    fit = 1 + int((two.cluster.device.memory_bytes - least) / an_image)
    note = (
        f"without GPipe, at the {images} images that naive-2 trains with; up to {fit} images would "
        f"fit one accelerator, {bytes_text(least)} for a single one: the claim holds for "
        "minibatches above that"
    )
    return Finding.simulated("gpipe-fig3a-needs-two", alone / 1e9, note)


def sensitivity(counts: Sequence[int] = (8, 16, 32)) -> pd.DataFrame:
    """Return simulated speedups by what the paper does not print: a row a panel, cut and T."""
    rows = []
    for network in ACCELERATORS:
        profile = profile_of(network)
        ways = {
            CUT: (profile, "operations"),
            CUT_BY_TIME: (profile, "time"),
            FUSED: (compute_bound(profile), "operations"),
        }
        for (what, (costs, by)), count in product(ways.items(), counts):
            _, *pipelined = panel = bars(network, costs, by, count)
            found = zip(pipelined, simulated_speedups(panel)[1:], strict=True)
            row = {"network": network, "stages": what, "microbatches": count}
            rows.append(row | {bar.scenario.name: speedup for bar, speedup in found})
    columns = [f"pipeline-{k}" for k in ACCELERATORS[RESNET]]
    return pd.DataFrame(rows)[["network", "stages", "microbatches", *columns]]


def figure(panel: Panel) -> tuple[go.Figure, pd.DataFrame]:
    """Return a panel of Figure 3 with all kinds of numbers side by side, and these numbers."""
    scenarios = [bar.scenario.name for bar in panel.bars]
    printed = PRINTED[panel.network]
    series: dict[str, Sequence[float | None]] = {
        "emulated": panel.emulated,
        "simulated": panel.simulated,
        "simulated, cut by time": panel.by_time,
        "paper": [printed.get(scenario) for scenario in scenarios],
    }
    speedup = f"speedup over {scenarios[0]}"
    numbers = pd.DataFrame(
        [
            (scenario, place + (position - 1.5) / 12, values[place], number)
            for position, (number, values) in enumerate(series.items())
            for place, scenario in enumerate(scenarios)
        ],
        columns=["name", "scenario", speedup, "number"],
    ).dropna(ignore_index=True)
    title = f"{panel.network}: {panel.emulated[-1]:.2f} times {scenarios[0]} on 8 accelerators; "
    title += f"the paper has {'' if panel.network == AMOEBANET else 'about '}"
    title += f"{printed['pipeline-8']:g}"
    label = "emulated, simulated, paper"
    drawn = plots.points(numbers, "scenario", speedup, "number", title=title, label=label)
    drawn.update_xaxes(tickvals=list(range(len(scenarios))), ticktext=scenarios)
    drawn.update_yaxes(range=[0, 1.05 * numbers[speedup].max()])
    return drawn, numbers


def amoebanet_findings(panel: Panel, variants: pd.DataFrame, picture: str) -> list[Finding]:
    """Return what Figure 3a and the abstract claim; ``variants`` is :func:`sensitivity`'s."""
    speedup, lowest = panel.emulated, (1 - TOLERANCE) * PRINTED[AMOEBANET]["pipeline-8"]
    note = (
        f"{_around(AMOEBANET, variants)}. The simulated value is "
        f"{100 * (panel.simulated[-1] / lowest - 1):+.1f} % from the end of the tolerance, within "
        "what emulations differ by"
    )
    label, by_time = panel.label, panel.by_time
    found = [
        (Finding("gpipe-fig3a-amoebanet", speedup, label, note, picture), by_time),
        (Finding("gpipe-abstract-3-5x-speedup", speedup[-1], label, note), by_time[-1]),
        (Finding("gpipe-sec42-near-linear", speedup[-1] / 4, label, note), by_time[-1] / 4),
    ]
    return [each.because(BY_OPERATIONS, value, changed=CUT_BY_TIME) for each, value in found]


def resnet_findings(panel: Panel, variants: pd.DataFrame, picture: str) -> list[Finding]:
    """Return what Figure 3b claims; arguments as for :func:`amoebanet_findings`."""
    profile, around = profile_of(RESNET), _around(RESNET, variants)
    note = (
        "pipeline-1 is forward + backward over twice forward + backward of the roofline, whose "
        f"backward is {profile.backward_s / profile.forward_s:.2f} times as long as a forward; "
        f"0.8 needs 3 times. Pipeline-8: {around}"
    )
    by_time = panel.by_time[1:]
    return [
        Finding("gpipe-fig3b-resnet101", panel.emulated[1:], panel.label, note, picture).because(
            BY_OPERATIONS, by_time, changed=CUT_BY_TIME
        ),
        Finding("gpipe-sec42-resnet-3x", panel.emulated[-1], panel.label, around),
    ]


def _around(network: str, variants: pd.DataFrame) -> str:
    """Return in words what pipeline-8's simulated speedup would be otherwise."""
    table = variants.set_index(["network", "stages", "microbatches"])["pipeline-8"]
    own, by_time, fused = (table[network, what, 16] for what in (CUT, CUT_BY_TIME, FUSED))
    few, many = (table[network, CUT, count] for count in (8, 32))
    return (
        f"simulated {own:.2f} (cut by operations), {by_time:.2f} (cut by time), {fused:.2f} (all "
        f"fused) with 16 microbatches, and {few:.2f} to {many:.2f} with 8 to 32; the paper prints "
        "neither the cut nor, for this figure, the microbatches"
    )
