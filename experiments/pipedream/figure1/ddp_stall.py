"""Communication stalls of real data-parallel training over slow links (PipeDream, section 2.1).

Two workers, each in a network of its own, train one model: with PyTorch's DistributedDataParallel
(DDP), which sends a bucket of gradients as soon as the backward has computed it (wait-free
backpropagation), with all gradients summed after the backward, and with pipekit's engine, for which
data parallelism is a single stage on two workers (section 4).  The links are really slow: see
:mod:`pipekit.clusters.namespaces`."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream.figure1 import ddp_worker
from experiments.pipedream.figure1.ddp_worker import (
    AFTER,
    COMPUTE,
    ENGINE,
    TRANSFERRED_BYTES,
    WAIT_FREE,
    WORKERS,
    network,
)
from experiments.recorded.findings import Finding
from pipekit import plots
from pipekit.clusters import namespaces
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.clusters.rates import bytes_per_second


@dataclass(frozen=True)
class Measured:
    """What two workers took over links of one rate, ``link`` as ``tc`` writes it or None.

    ``steps`` are seconds from one update to the next, by way of training, equally many of each of
    ``turns``; ``transfers`` seconds of each transfer of ``TRANSFERRED_BYTES`` from one worker to
    the other.
    """

    link: str | None
    steps: dict[str, list[float]]
    transfers: list[float]
    turns: int = 1

    @property
    def transfer_ratio(self) -> float:
        """The median transfer's seconds over bytes / bandwidth (section 3.2)."""
        assert self.link is not None
        predicted = TRANSFERRED_BYTES / bytes_per_second(self.link)
        return float(np.median(self.transfers)) / predicted

    @property
    def exchange_s(self) -> float:
        """Seconds that the exchange of all gradients takes at the link's rate; 0 without limit."""
        if self.link is None:
            return 0.0
        parameter_bytes = sum(p.nbytes for p in network().parameters())
        return all_reduce_bytes(parameter_bytes, WORKERS) / bytes_per_second(self.link)

    def step_s(self, way: str) -> float:
        """Return the median step of a way of training."""
        return float(np.median(self.steps[way]))

    def stall_s(self, way: str) -> float:
        """Return the seconds of a median step in which nothing is computed."""
        return self.step_s(way) - self.step_s(COMPUTE)

    @property
    def throughput_ratio(self) -> float:
        """Our engine's throughput over DDP's, the median of :attr:`throughput_ratios`."""
        return float(np.median(self.throughput_ratios))

    @property
    def throughput_ratios(self) -> list[float]:
        """Our engine's throughput over DDP's in each turn."""
        ddp, engine = (
            np.median(np.reshape(self.steps[way], (self.turns, -1)), axis=1)
            for way in (WAIT_FREE, ENGINE)
        )
        return [float(ratio) for ratio in ddp / engine]


def measure(link: str | None, rows: int, steps: int, repeats: int) -> Measured:
    """Train on two workers behind links of a rate, "300mbit" as ``tc`` writes it, or None.

    Every way of training takes ``steps`` in a row, in ``repeats`` turns: a shared machine is not
    always equally fast. Without network namespaces it is an OSError; a worker that fails is a
    RuntimeError with what the workers said.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "measured.json")
        numbers = [str(number) for number in (rows, steps, repeats)]
        command = [sys.executable, "-m", ddp_worker.__name__, str(path), *numbers]
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            failed = namespaces.run(command, WORKERS, link)
        if failed:
            raise RuntimeError(f"a worker failed with exit code {failed}:\n{said.getvalue()}")
        return Measured(link, **json.loads(path.read_text(encoding="utf-8")), turns=repeats)


def table(results: Iterable[Measured]) -> pd.DataFrame:
    """Return a row a link and way of training: link, way, step_ms, stall_ms, stall_percent."""
    return pd.DataFrame(
        {
            "link": result.link or "no limit",
            "way": way,
            "step_ms": 1e3 * result.step_s(way),
            "stall_ms": 1e3 * result.stall_s(way),
            "stall_percent": 100 * result.stall_s(way) / result.step_s(way),
        }
        for result in results
        for way in (WAIT_FREE, AFTER, ENGINE)
    )


def measure_all(links: str, rows: int, steps: int, repeats: int) -> list[Measured]:
    """Return :func:`measure` for each of several rates, "400mbit none"; "none" is no limit."""
    rates = [None if rate == "none" else rate for rate in links.split()]
    return [measure(rate, rows, steps, repeats) for rate in rates]


def limited(measured: Iterable[Measured]) -> list[Measured]:
    """Return the results over links that had a limit."""
    return [result for result in measured if result.link]


def stall_points(measured: Iterable[Measured]) -> pd.DataFrame:
    """Return the stall by way of training and rate, for links with a limit."""
    return pd.DataFrame(
        {
            "link (Mbit/s)": bytes_per_second(str(result.link)) * 8e-6,
            "stall (% of a step)": 100 * result.stall_s(way) / result.step_s(way),
            "way": way,
        }
        for result in limited(measured)
        for way in (WAIT_FREE, AFTER, ENGINE)
    )


def stall_figure(measured: Iterable[Measured]) -> go.Figure:
    """Draw :func:`stall_points`."""
    results = limited(measured)
    slowest = min(results, key=lambda result: bytes_per_second(str(result.link)))
    share = slowest.stall_s(WAIT_FREE) / slowest.step_s(WAIT_FREE)
    title = f"At {slowest.link}, DDP computes nothing in {share:.0%} of a step"
    axes = "link (Mbit/s)", "stall (% of a step)", "way"
    figure = plots.points(stall_points(results), *axes, title=title, label="measured")
    return figure.update_yaxes(range=[0, 100])


def ratios(measured: Iterable[Measured]) -> pd.DataFrame:
    """Return transfers over bytes / bandwidth, and our throughput over DDP's, by link."""
    return pd.DataFrame(
        {
            "link": result.link or "no limit",
            "transfer over bytes / bandwidth": result.transfer_ratio if result.link else np.nan,
            "pipekit's throughput over DDP's": result.throughput_ratio,
        }
        for result in measured
    )


def findings(measured: Sequence[Measured]) -> list[Finding]:
    """Return what real training over slow links says of section 2.1, as far as it was measured."""
    found = []
    # The fastest link over which the exchange takes longer than a whole step of compute.
    results = limited(measured)
    if long := [r for r in results if r.exchange_s > r.step_s(COMPUTE)]:
        telling = min(long, key=lambda result: result.exchange_s)
        note = (
            f"seconds, DDP over {telling.link}: the exchange alone takes {telling.exchange_s:.2g} "
            f"s at the link's rate, compute {telling.step_s(COMPUTE):.2g} s"
        )
        pair = [telling.stall_s(way) for way in (WAIT_FREE, AFTER)]
        found.append(Finding.measured("pipedream-sec2-wfbp-still-stalls", pair, note))
    if results:
        far = max(results, key=lambda result: abs(result.transfer_ratio - 1))
        note = (
            f"furthest from 1 of {', '.join(str(r.link) for r in results)}: at {far.link}; "
            "Ethernet and TCP headers are 5 %"
        )
        # Both papers have the same equation, in sections 3.2 and 4.
        for claim in ("pipedream-comm-time-model", "2bw-comm-time-model"):
            found.append(Finding.measured(claim, far.transfer_ratio, note))
    if measured:
        worst = min(measured, key=lambda result: result.throughput_ratio)
        note = (
            f"smallest over {' '.join(r.link or 'no limit' for r in measured)}: at "
            f"{worst.link or 'no limit'}, {worst.step_s(ENGINE) * 1e3:.0f} ms a step, DDP "
            f"{worst.step_s(WAIT_FREE) * 1e3:.0f} ms; the median of the turns"
        )
        fair = Finding.measured("pipedream-dp-baseline-fair", worst.throughput_ratio, note)
        found.append(fair.over(worst.throughput_ratios))
    return found
