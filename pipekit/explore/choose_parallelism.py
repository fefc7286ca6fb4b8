"""Model, devices and batch in; the ways to spread it, memory by rank, and the chosen timeline."""

from functools import lru_cache, partial
from typing import Annotated

import pipekit as pk
from pipekit.explore.page.controls import choice, count, entry
from pipekit.explore.page.explorer import explore
from pipekit.explore.page.view import Timeline, View
from pipekit.performance import flags
from pipekit.performance.devices import MACHINES
from pipekit.performance.predict import step
from pipekit.performance.recommend import RankedLayout, recommend
from pipekit.performance.step import one_batch
from pipekit.profiling import LayerProfile, Profile

DTYPES = [("usual", "")] + [(dtype,) * 2 for dtype in ("bfloat16", "float16", "float8", "float4")]
SHOWN, ROUNDS = 12, 3  # candidates in the table; microbatches a rank in the timeline


def see(
    model: Annotated[str, entry("model")] = "llama3-70b",
    device: Annotated[str, choice("device", MACHINES)] = "H100",
    gpus: Annotated[int, count("GPUs", 1, 100_000)] = 64,
    batch: Annotated[int, count("samples a step", 1, 100_000)] = 128,
    seq_tokens: Annotated[int, count("tokens", 1, 10_000_000)] = 8192,
    dtype: Annotated[str, choice("products in", DTYPES)] = "",
    graphs: Annotated[bool, choice("CUDA graphs", [("no", False), ("yes", True)])] = False,
    rank: Annotated[int, count("candidate", 1, 100_000)] = 1,
    framework: Annotated[str, choice("flags of", flags.FRAMEWORKS)] = "megatron",
) -> View:
    """Return the ranked layouts, and of one of them the timeline, memory and flags.

    Args:
        model, batch, seq_tokens, graphs: as :func:`.recommend` takes them.
        dtype: likewise; if it is empty, the first that the device computes in.
        device: of :data:`pipekit.performance.devices.MACHINES`; ``gpus``: how many.
        rank: of the candidate that is drawn, from 1.
        framework: whose flags are shown.
    """
    how = {"seq_tokens": seq_tokens, "dtype": dtype or None, "graphs": graphs}
    found = _recommended(model, (gpus, device), batch, **how)
    if rank > len(found.candidates):
        raise ValueError(f"there are {len(found.candidates)} candidates: choose one of them")
    chosen = found.candidates[rank - 1]
    by_rank = " ".join(f"{each / 1e9:.1f}" for each in chosen.peak_bytes)
    text = f"Candidate {rank}: {chosen.reason} (simulated).\nGB by pipeline rank: {by_rank}\n"
    text += f"{found.standing}\n\n{flags.FRAMEWORKS[framework](chosen.run)}"
    return View(
        text=text,
        timelines=[_timeline(chosen)] if chosen.layout.pp > 1 else [],
        table=found.frame().head(SHOWN).drop(columns="reason"),
        caption=f"The fastest of {found.tried:,} layouts (simulated).",
    )


choose_parallelism = partial(explore, see, waits_for="trying layouts")


_recommended = lru_cache(8)(recommend)


def _timeline(chosen: RankedLayout) -> Timeline:
    made, layout = step(chosen.run), chosen.layout
    microbatches = min(layout.microbatches, ROUNDS * layout.pp)
    schedule = one_batch(layout.method, layout.stages, layout.pp, microbatches)
    passes = zip(made.forward_s, made.backward_s, strict=True)
    trace = pk.simulate(schedule, Profile(tuple(LayerProfile("", *each) for each in passes)))
    part = f"{microbatches} of {layout.microbatches} microbatches"
    return Timeline(trace, title=f"{trace.name}, {part}")
