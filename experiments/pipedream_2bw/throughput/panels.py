"""The panels of PipeDream-2BW's Figure 6: rates of five systems, and the paper's ratios (5.2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream_2bw.profiles import ProfileOf, headless_profile
from experiments.pipedream_2bw.settings import FIGURE6
from experiments.pipedream_2bw.systems import (
    FLUSH,
    GPIPE,
    INTER_LAYER,
    SYSTEMS,
    TENSOR_MP,
    TWO_BW,
    Pipelines,
)
from experiments.pipedream_2bw.throughput import rates
from experiments.study.figures import named_rows
from experiments.study.rounds import Emulated, emulated
from pipekit.progress import progress_bar

SMALL, LARGE = 0, 1
"""Which of a panel's two batches."""

Panels = Mapping[str, Mapping[int, Pipelines]]
"""What each panel runs, by letter and batch."""


def panels() -> Panels:
    """Return what every panel of Figure 6 runs."""
    return {
        letter: {batch: rates.job(panel, batch) for batch in panel.batches}
        for letter, panel in FIGURE6.items()
    }


def sizes(jobs: Panels) -> pd.DataFrame:
    """Return each panel's configuration, 2BW's GB, and what GPipe admits (simulated)."""
    return pd.DataFrame(
        {
            "panel": letter,
            "model": FIGURE6[letter].model,
            "GPUs": job.cluster.workers,
            "batch": batch,
            "d": job.depth,
            "w": job.width,
            "b": job.profile.rows,
            "m": job.microbatches,
            "GB, 2BW": job.bytes_of(range(job.depth, 0, -1), 2, True).max() / 1e9,
            "GPipe's flushes": " ".join(map(str, job.flushes())),
            "GPipe admits": job.admitted(),
            "by the formula": job.admitted(keeps_loss=False),
        }
        for letter, own in jobs.items()
        for batch, job in own.items()
    )


@dataclass(frozen=True)
class Figure6:
    """Sequences a second by batch and system: panel a emulated, b and c simulated.

    ``label`` is the weakest kind of panel a's numbers.
    """

    jobs: Panels
    simulated: Mapping[str, pd.DataFrame]
    emulated: pd.DataFrame
    label: str = "emulated"

    @property
    def unrun(self) -> "Figure6":
        """The same with panel a simulated, too."""
        return replace(self, emulated=self.simulated["a"], label="simulated")

    @property
    def rates(self) -> dict[str, pd.DataFrame]:
        """What is drawn, by panel."""
        return {**self.simulated, "a": self.emulated}

    def over(self, one: str, other: str, letter: str) -> list[float]:
        """Return how many times as fast one system is, for a panel's small and large batch."""
        table = self.rates[letter]
        return list((table[one] / table[other]).tolist())

    def most(self, one: str, other: str, which: int, letters: str = "abc") -> float:
        """Return the largest simulated ratio over panels, for the SMALL or LARGE batch."""
        tables = (self.simulated[letter] for letter in letters)
        return max(float((table[one] / table[other]).iloc[which]) for table in tables)

    @cached_property
    def _without_logits(self) -> pd.DataFrame:
        return rates.panel_rates(FIGURE6["a"], headless_profile)

    def balanced(self, one: str, other: str) -> list[float]:
        """Return panel a's ratios (simulated) if the logits, on the last stage, took no time."""
        return list((self._without_logits[one] / self._without_logits[other]).tolist())

    def figures(self) -> Iterator[tuple[str, go.Figure, pd.DataFrame]]:
        """Yield each panel's name, figure and numbers."""
        for letter, table in self.rates.items():
            panel = FIGURE6[letter]
            ahead = " and ".join(f"{ratio:.2f}" for ratio in self.over(TWO_BW, FLUSH, letter))
            figure, _ = named_rows(
                table.rename(index="batch {}".format).T,
                "throughput",
                title=f"GPT {panel.model}, {panel.cluster.workers} GPUs: 2BW is {ahead} times as "
                "fast as Flush",
                label=f"{self.label}; tensor MP simulated" if letter == "a" else "simulated",
                x_title=f"sequences/s, {panel.depth}-way model parallelism",
            )
            yield f"figure6{letter}", figure, table.reset_index()

    def ratios(self) -> pd.DataFrame:
        """Return the paper's maxima over panels and batches beside ours."""
        over, most = self.over, self.most
        tensor = max(most(TWO_BW, TENSOR_MP, which, "c") for which in (SMALL, LARGE))
        gpipe = max(most(TWO_BW, GPIPE, which) for which in (SMALL, LARGE))
        rows = [
            ("2BW / tensor MP, one server", 1.3, max(over(TWO_BW, TENSOR_MP, "a")), self.label),
            ("2BW / tensor MP, 3.8B", 20, tensor, "simulated"),
            ("Flush / inter-layer, small", 4.1, over(FLUSH, INTER_LAYER, "a")[SMALL], self.label),
            ("Flush / inter-layer, large", 5.3, over(FLUSH, INTER_LAYER, "a")[LARGE], self.label),
            ("2BW / inter-layer", 6.1, max(over(TWO_BW, INTER_LAYER, "a")), self.label),
            ("2BW / GPipe", 3.2, gpipe, "simulated"),
            ("Flush / GPipe, small", 2.1, most(FLUSH, GPIPE, SMALL), "simulated"),
            ("Flush / GPipe, large", 3, most(FLUSH, GPIPE, LARGE), "simulated"),
            ("2BW / Flush, small", 1.6, most(TWO_BW, FLUSH, SMALL, "b"), "simulated"),
            ("2BW / Flush, 2048", 1.15, most(TWO_BW, FLUSH, LARGE, "b"), "simulated"),
        ]
        return pd.DataFrame(rows, columns=["ratio", "paper", "ours", "label"])


def figure6(jobs: Panels, faster: float, emulations: int) -> list[Figure6]:
    """Simulate all panels, and emulate panel a so often, sped up; return each round of these.

    Inter-layer model parallelism does one microbatch after another, so that its smaller batch
    stands for both.
    """
    simulated = {letter: rates.rates(own.values(), SYSTEMS) for letter, own in jobs.items()}
    small, large = FIGURE6["a"].batches
    timed: dict[tuple[int, str], Emulated] = {}
    for batch, job in jobs["a"].items():
        for system in progress_bar(SYSTEMS[1:], desc=f"batch {batch}"):
            if (batch, system) != (large, INTER_LAYER):
                run = partial(_emulated_s, job, system, faster)
                expected = batch / float(simulated["a"].loc[batch, system])
                timed[batch, system] = emulated(run, expected, emulations)
    all_count = all(each.counted for each in timed.values())
    rounds = []
    for number in range(emulations):
        table = simulated["a"].copy()
        for (batch, system), each in timed.items():
            table.loc[batch, system] = batch / each.only(number).seconds
        table.loc[large, INTER_LAYER] = table.loc[small, INTER_LAYER]
        rounds.append(Figure6(jobs, simulated, table, "emulated" if all_count else "simulated"))
    return rounds


def _emulated_s(job: Pipelines, system: str, faster: float, pace: float) -> float:
    return rates.emulated(job, system, faster * pace)


def ratio_figure(ratios: pd.DataFrame) -> go.Figure:
    """Draw :meth:`Figure6.ratios`."""
    close = int(((ratios["ours"] / ratios["paper"] - 1).abs() <= 0.15).sum())
    figure, _ = named_rows(
        ratios.set_index("ratio")[["paper", "ours"]],
        "times as fast",
        title=f"{close} of {len(ratios)} ratios are within 15 % of the paper's",
        label="paper, emulated, simulated",
    )
    decades = [1, 2, 5, 10, 20]
    figure.update_xaxes(type="log", range=[-0.1, 1.4], tickvals=decades, ticktext=decades)
    return figure.update_layout(margin={"l": 230})


def slower_with(
    profile_of: ProfileOf, letters: str
) -> Iterator[tuple[str, pd.DataFrame, list[str]]]:
    """Yield a panel's rates with another network, and which expected orders do not hold."""
    expected = [(TWO_BW, FLUSH), (FLUSH, GPIPE), (GPIPE, INTER_LAYER), (TWO_BW, TENSOR_MP)]
    for letter in letters:
        table = rates.panel_rates(FIGURE6[letter], profile_of)
        wrong = [
            f"{one} / {other}, panel {letter}, batch {batch}"
            for one, other in expected
            for batch in table.index[table[one] <= table[other] * (1 + 1e-9)]
        ]
        yield letter, table, wrong
