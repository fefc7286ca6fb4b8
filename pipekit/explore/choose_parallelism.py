"""Model, devices and batch in; the ways to spread it, memory by rank, and the chosen timeline."""

from functools import lru_cache, partial

import ipywidgets as widgets

from pipekit.explore.page.controls import choice
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.performance import flags
from pipekit.performance.devices import MACHINES, machine
from pipekit.performance.predict import step
from pipekit.performance.recommend import RankedLayout, Recommendation, recommend
from pipekit.performance.step import one_batch
from pipekit.profiling import Profile
from pipekit.simulation import Costs, simulate
from pipekit.traces import Trace

DTYPES = "bfloat16", "float16", "float8", "float4"
SHOWN, ROUNDS = 12, 3
"""Candidates in the table; microbatches a rank in the timeline."""


def see(
    model: str = "llama3-70b",
    device: str = "H100",
    gpus: int = 64,
    batch: int = 128,
    seq_tokens: int = 8192,
    dtype: str = "bfloat16",
    rank: int = 1,
    framework: str = "megatron",
) -> View:
    """Return the ranked layouts, and of one of them the timeline, memory and flags.

    Args:
        model: a published model's name, or the path of a ``config.json``.
        device: of :data:`pipekit.performance.devices.MACHINES`.
        gpus: how many.
        batch: samples a step.
        seq_tokens: tokens of a sample.
        dtype: of products.
        rank: of the candidate that is drawn, from 1.
        framework: whose flags are shown.
    """
    found = _recommended(model, device, gpus, batch, seq_tokens, dtype)
    if rank > len(found.candidates):
        raise ValueError(f"there are {len(found.candidates)} candidates: choose one of them")
    chosen = found.candidates[rank - 1]
    by_rank = " ".join(f"{each / 1e9:.1f}" for each in chosen.peak_bytes)
    text = f"Candidate {rank}: {chosen.reason} (simulated).\nGB by pipeline rank: {by_rank}\n"
    text += f"{found.standing}\n\n{flags.FRAMEWORKS[framework](chosen.run)}"
    return View(
        text=text,
        timelines=[Timeline(_timeline(chosen))] if chosen.layout.pp > 1 else [],
        table=found.frame().head(SHOWN).drop(columns="reason"),
        caption=f"The fastest of {found.tried:,} layouts (simulated).",
    )


def controls() -> dict[str, widgets.ValueWidget]:
    """Return the controls of :func:`see`."""
    count = partial(widgets.BoundedIntText, min=1, max=100_000)
    return {
        "model": widgets.Text(description="model", continuous_update=False),
        "device": choice("device", MACHINES),
        "gpus": count(description="GPUs"),
        "batch": count(description="samples a step"),
        "seq_tokens": widgets.BoundedIntText(description="tokens", min=1, max=10_000_000),
        "dtype": choice("products in", DTYPES),
        "rank": count(description="candidate"),
        "framework": choice("flags of", flags.FRAMEWORKS),
    }


choose_parallelism = partial(explore, see, controls, waits_for="trying layouts")
"""Display the explorer; see :func:`pipekit.explore.page.explorer.explore`."""


@lru_cache(8)
def _recommended(
    model: str, device: str, gpus: int, batch: int, seq_tokens: int, dtype: str
) -> Recommendation:
    return recommend(model, (gpus, machine(device)), batch, seq_tokens=seq_tokens, dtype=dtype)


def _timeline(chosen: RankedLayout) -> Trace:
    """Return the pipeline's timeline, of a few microbatches a rank."""
    made, layout = step(chosen.run), chosen.layout
    microbatches = min(layout.microbatches, ROUNDS * layout.pp)
    schedule = one_batch(layout.method, layout.stages, layout.pp, microbatches)
    seconds = {
        (worker, task.op, task.stage, task.microbatch): (
            made.backward_s if task.op.own else made.forward_s
        )[task.stage]
        for worker, tasks in enumerate(schedule.workers)
        for task in tasks
        if task.op.is_pass
    }
    layers = Profile.uniform(layout.stages, 1.0, 2.0)
    return simulate(schedule, Costs(layers, tasks=seconds))
