"""What the memory of real training says of PipeDream-2BW's formulas (sections 3, 5.3 and 6)."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pandas as pd
import plotly.graph_objects as go
import torch

from experiments.pipedream_2bw.memory.formulas import (
    BATCHES,
    EqualStages,
    counted,
    crossover,
    inputs_kept,
)
from experiments.pipedream_2bw.profiles import gpt_profile
from experiments.pipedream_2bw.settings import PRINTED_PARAMETERS
from experiments.pipedream_2bw.systems import FLUSH, GPIPE, TABLES, TWO_BW
from experiments.recorded.findings import Finding
from experiments.torchgpipe.one_stage import OneStage
from pipekit import plots, schedules
from pipekit.engine import measure_memory
from pipekit.models import gpt, token_loss

Small = Callable[..., EqualStages]
"""Makes a small GPT's training: system, depth, microbatches, rows, "always" or "never"."""


def law_cases(small: Small, most_microbatches: int) -> list[EqualStages]:
    """Return all systems, with and without recomputation, for three (d, m, b)."""
    return [
        small(system, depth, microbatches, rows, mode)
        for (depth, microbatches, rows) in [(2, 4, 2), (4, 4, 1), (4, most_microbatches, 2)]
        for system, mode in product(TABLES, ("always", "never"))
    ]


def with_errors(laws: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`.formulas.table` with "off", accounted minus formula, and engine / formula."""
    off = laws["accounted"] - laws["formula"]
    return laws.assign(**{"off": off, "engine / formula": laws["engine"] / laws["formula"]})


def law_figure(laws: pd.DataFrame) -> go.Figure:
    """Draw the fullest worker's bytes in training over those by formula."""
    x, y = "fullest worker by formula (kB)", "fullest worker in training (kB)"
    drawn = laws.assign(**{x: laws["formula"] / 1e3, y: laws["engine"] / 1e3})
    title = "Real training holds what the formulas say"
    return plots.points(drawn, x, y, "system", title=title, label="measured", diagonal=True)


def law_findings(laws: pd.DataFrame, most_microbatches: int) -> list[Finding]:
    """Return how far accounts and training are from section 3's formulas, at most."""

    def farthest(system: str, mode: str, column: str, wanted: float) -> float:
        rows = laws[(laws["system"] == system) & (laws["recompute"] == mode)]
        return float(max(rows[column], key=lambda value: abs(value - wanted)))

    def both(system: str) -> list[float]:
        wanted = {"off": 0, "engine / formula": 1}
        return [farthest(system, "always", column, at) for column, at in wanted.items()]

    settings = f"(d, m, b) = (2, 4, 2), (4, 4, 1), (4, {most_microbatches}, 2); the farthest"
    trained, figure = f"{settings}; the second is measured", "formulas.svg"
    stash = (
        f"{settings}; |A_total| with the stages' inputs here, for which this formula has no "
        "other term"
    )
    flush, kept = farthest(FLUSH, "always", "off", 0), farthest(TWO_BW, "never", "off", 0)
    return [
        Finding.exact("2bw-mem-2bw-recompute", both(TWO_BW), trained, figure),
        Finding.exact("2bw-mem-gpipe-recompute", both(GPIPE), trained, figure),
        Finding.exact("2bw-mem-flush", flush, settings),
        Finding.exact("2bw-mem-no-recompute", kept, stash),
    ]


def consequence_findings(small: Small) -> list[Finding]:
    """Return what follows from the formulas: crossover, inputs kept, versions, |W| beside |A|."""
    limit = crossover(small(GPIPE, 4, 4, 2, "always"))
    around = range(4, 2 * int(limit))
    crosses = all(
        (_accounted(small, GPIPE, m) > _accounted(small, TWO_BW, m)) == (m > limit) for m in around
    )
    crossed = f"d = 4: m > {limit:.2f}, tried m = {around.start} to {around.stop - 1}"
    kept = {name: inputs_kept(small(name, 4, 8, 2, "always")) for name in (TWO_BW, GPIPE)}
    counts = {
        name: list(schedules.check(TABLES[name](4, 8).take(BATCHES)).peak_in_flight)
        for name in kept
    }
    inputs = f"inputs kept on each of 4 workers of real training: {kept}"
    flying = [
        schedules.check(schedules.two_bw(d, d).take(BATCHES)).peak_in_flight[0]
        for d in (2, 4, 8, 16)
    ]
    ours, flush = (
        measure_memory(small(name, 4, 4, 1, "always").run()).frame for name in (TWO_BW, FLUSH)
    )
    two, one = (frame.groupby("worker")["weights"].max().tolist() for frame in (ours, flush))
    weights = small(FLUSH, 4, 4, 1, "always").sizes.weights
    doubled = two == [2 * size for size in one] == [2 * weights] * 4
    more = f"each worker: {weights:,.0f} bytes more in real training, |W|/d"
    ratios = weights_over_activations()
    told = (
        "; ".join(f"{name}: {ratio:.2f}" for name, ratio in ratios.items())
        + ". Both in 2-byte numbers: for GPTs not true of the smallest microbatches"
    )
    return [
        Finding.exact("2bw-mem-crossover", crosses, crossed),
        Finding.exact("2bw-recompute-input-only", kept == counts, inputs),
        Finding.exact("2bw-inflight-proportional-depth", flying),
        Finding.exact("2bw-sec6-extra-version", doubled, more),
        Finding.simulated("2bw-mem-w-small-vs-a", list(ratios.values()), told),
    ]


def _accounted(small: Small, system: str, microbatches: int) -> float:
    return counted(small(system, 4, microbatches, 2, "always").simulated())


def weights_over_activations() -> dict[str, float]:
    """Return |W| / |A_total(b)| of the paper's GPTs, by model and microbatch (simulated)."""
    ratios = {}
    for size, rows in product(PRINTED_PARAMETERS, (1, 8, 32)):
        profile = gpt_profile(size, rows)
        made = sum(layer.saved_bytes for layer in profile.layers)
        ratios[f"{size}, b = {rows}"] = profile.parameter_bytes / made
    return ratios


def ordering_findings(ordered: pd.DataFrame) -> list[Finding]:
    """Return the systems' measured peak bytes, in the order of section 5.3."""
    peaks, m, b = ordered.set_index("system")["peak"], ordered["m"].iloc[0], ordered["b"].iloc[0]
    over_flush = [peaks[TWO_BW] / peaks[FLUSH], peaks[GPIPE] / peaks[FLUSH]]
    fullest = f"peak bytes of the fullest of 4 workers, m = {m}, b = {b}"
    parts = f"d = 4, m = {m}, all parts but the optimizer's state"
    return [
        Finding.measured("2bw-sec53-mem-ordering", peaks.tolist(), fullest),
        Finding.measured("2bw-mem-flush-lowest", over_flush, parts),
    ]


def price_seconds(blocks: int, hidden: int, rounds: int, seed: int) -> pd.DataFrame:
    """Return a batch's CPU seconds on one core (measured), a row a round and a column a mode."""
    torch.manual_seed(seed)
    network = gpt(blocks, hidden, 4, vocabulary=512, sequence=64)
    tokens = torch.randint(512, (8, 64))
    adam = partial(torch.optim.Adam, lr=1e-4)
    return OneStage(network, tokens, tokens, 4, loss=token_loss, optimizer=adam).rounds(rounds)


def price_findings(seconds: pd.DataFrame) -> list[Finding]:
    """Return how many times as long a batch takes that is recomputed, "always" over "never".

    ``seconds`` are what :func:`price_seconds` returned.
    """
    ratios, least = seconds["always"] / seconds["never"], seconds.min()
    slower = float(ratios.median())
    note = f"CPU time: {least['never']:.3f} and {least['always']:.3f} s a batch of 4 microbatches"
    lower = f"{note}; throughput {100 * (1 - 1 / slower):.0f} % lower"
    return [
        Finding.measured("2bw-recompute-33pct", slower, lower).over(ratios),
        Finding.measured("2bw-recompute-1-33x", slower, note).over(ratios),
    ]
