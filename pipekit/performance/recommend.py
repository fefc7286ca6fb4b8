"""Which layout trains a model fastest on some GPUs: all that fit, by the seconds of their steps."""

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pipekit import units
from pipekit.choices import require_choice
from pipekit.performance.configs import from_config
from pipekit.performance.constants import fitted
from pipekit.performance.devices import Machine, machine
from pipekit.performance.layout import ParallelLayout, Recompute, layouts
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import Shape, shape
from pipekit.performance.step import TrainingStep
from pipekit.performance.training import MEGATRON_BRIDGE, Framework, TrainingSetup, on, training
from pipekit.progress import progress_bar

if TYPE_CHECKING:
    import pandas as pd

_DEGREES = "tp cp ep pp chunks dp zero recompute microbatch_samples microbatches method"
Model = str | os.PathLike[str] | Shape
Cluster = str | tuple[int, Machine | str]

USABLE = 0.9  # of a device's memory, that allocated peaks may fill: an allocator reserves more
_RECOMPUTE: tuple[Recompute, ...] = ("nothing", "activations", "selective", "everything")
"""From what costs no time to what costs most; the first that fits is taken."""
_CHEAP = _RECOMPUTE.index("activations")  # the last of which no product runs again


@dataclass(frozen=True)
class RankedLayout:
    """A layout and what is predicted of it: its step, and the peak of each pipeline rank."""

    run: TrainingSetup
    peak_bytes: tuple[float, ...]

    @property
    def layout(self) -> ParallelLayout:
        return self.run.layout

    @cached_property
    def made(self) -> TrainingStep:
        return step(self.run)

    @cached_property
    def step_s(self) -> float:
        return self.made.seconds

    @property
    def reason(self) -> str:
        """Where the time of its slowest rank goes, and how full the fullest one is."""
        after = self.made.after_s / self.step_s
        idle = 1 - self.made.least_s / self.step_s
        full = max(self.peak_bytes)
        rank = self.peak_bytes.index(full)
        share = full / self.run.links.machine.device.memory_bytes
        return (
            f"{max(idle, 0):.0%} of the step idle in the pipeline, {after:.0%} for replicas' "
            f"gradients and the optimizer; {units.written(full, units.BYTES)} on rank {rank}, "
            f"{share:.0%} of the device"
        )

    def __repr__(self) -> str:
        took = units.written(self.step_s, units.SECONDS)
        return f"<{self.layout}: {took} a step (simulated); {self.reason}>"


@dataclass(frozen=True)
class Recommendation:
    """Layouts that fit, the fastest first, one for each way to spread the model.

    80 % of published step times of such models were within a factor of exp(``half_width``) of
    their predictions; of the layouts ``tried`` some are ``too_large`` for the memory.
    """

    candidates: tuple[RankedLayout, ...]
    half_width: float
    tried: int
    too_large: int

    @property
    def equal(self) -> int:
        """How many of the first cannot be told apart from the first, by that error."""
        best = self.candidates[0].step_s * math.exp(self.half_width)
        return sum(each.step_s <= best for each in self.candidates)

    def frame(self) -> "pd.DataFrame":
        """Return a row a candidate: its degrees, seconds with their interval, GB, the reason."""
        import pandas as pd

        wide = math.exp(self.half_width)
        return pd.DataFrame(
            {
                **{name: getattr(each.layout, name) for name in _DEGREES.split()},
                "step_s": each.step_s,
                "low_s": each.step_s / wide,
                "high_s": each.step_s * wide,
                "peak_gb": max(each.peak_bytes) / 1e9,
                "reason": each.reason,
            }
            for each in self.candidates
        )

    @property
    def standing(self) -> str:
        """How many layouts were tried, in which dtype; how many of the first are alike."""
        text = (
            f"{self.tried} layouts were tried in {self.candidates[0].run.dtype}, {self.too_large} "
            f"of them do not fit in memory. "
        )
        if self.equal == 1:
            return f"{text}The first is faster than all others by more than the error."
        return (
            f"{text}The first {self.equal} cannot be told apart: 80 % of published steps are "
            f"within {math.expm1(self.half_width):.0%} of their predictions."
        )

    def __repr__(self) -> str:
        table = self.frame().drop(columns="reason").head(10).round(3).to_string(index=False)
        return f"{table}\n\nThe first: {self.candidates[0].reason} (simulated).\n{self.standing}"


def recommend(
    model: Model,
    cluster: Cluster,
    batch: int,
    *,
    seq_tokens: int = 4096,
    dtype: str | None = None,
    graphs: bool = False,
    trains_weights: bool = True,
    framework: Framework = MEGATRON_BRIDGE,
) -> Recommendation:
    """Return the layouts that fit, ranked by the seconds of a step (docs/predictions.md).

    Every way to spread the model by tensor, context, expert, pipeline and data parallelism is
    tried, with each number of virtual stages and size of microbatches, and the least recomputation
    that fits; of those that spread it alike the fastest is kept.

    Args:
        model: a name of :data:`pipekit.performance.shapes.SHAPES`, the path of a ``config.json``,
            or a shape.
        cluster: "64xH100", or a count with a name or a ``pipekit.performance.devices.Machine``.
        batch: samples a step, over all replicas.
        seq_tokens: of a sample.
        dtype: of products: "bfloat16", "float16", "float8" or "float4"; by default the first that
            the device has units for.
        graphs: whether a pass is launched as one CUDA graph, so that small kernels cost less.
        trains_weights: False if the weights are frozen, beside small adapters (LoRA).
        framework: that runs it.

    Raises:
        ValueError: the model or the device is unknown, the device does not compute in the dtype, or
            no layout fits; the message says how much memory the smallest takes.
    """
    count, kind = _gpus(cluster)
    known = model
    if isinstance(known, str | os.PathLike):
        known = from_config(known) if Path(known).suffix == ".json" else shape(str(known))
    if not isinstance(known, Shape):
        raise ValueError(f"a model is a name, a config.json's path or a Shape, not {model!r}")
    count, batch = units.whole("gpus", count), units.whole("batch", batch)
    seq_tokens = units.whole("seq_tokens", seq_tokens)
    if dtype is None:
        dtype = next(each for each in kind.dtypes if each not in ("float4", "float8"))
    require_choice(f"dtype on {kind.device.name}", dtype, kind.dtypes)
    room = USABLE * kind.device.memory_bytes
    tried = [
        layout
        for layout in layouts(known, kind, count, batch, seq_tokens)
        if layout.ep == 1 or dtype != "float16"  # in which Megatron-LM spreads no experts
    ]
    if not tried:
        raise ValueError(
            f"a batch of {batch} cannot be dealt to {count} GPUs by {known.name}'s "
            f"{known.layers} layers and its heads: use a multiple of {count}, or fewer GPUs"
        )
    ranked = list[RankedLayout]()
    for layout in progress_bar(tried, desc="recommend", unit="layout", delay=1.0):
        run = training(known, layout, kind, framework, seq_tokens=seq_tokens, dtype=dtype)
        run = replace(run, graphs=graphs, trains_weights=trains_weights)
        ranked.append(_least_recomputed(run, room))
    fitting = [each for each in ranked if max(each.peak_bytes) <= room]
    if not fitting:
        least = min(max(each.peak_bytes) for each in ranked)
        raise ValueError(
            f"no layout of {known.name} fits on {count} {kind.device.name} with a batch of {batch}"
            f"; the smallest takes {units.written(least, units.BYTES)}: use more GPUs, a smaller "
            f"batch or shorter sequences"
        )
    own, fits = on(framework, kind), fitted()
    # Whatever a machine's constants, they are those of all its layouts.
    known_best = (each for each in fits.machines if each.startswith(f"{framework.name} on "))
    apart = min(fits.half_width(each, known.kind) for each in (own, *known_best))
    half = fits.half_width(own, known.kind)
    return Recommendation(_ranked(fitting, apart), half, len(tried), len(tried) - len(fitting))


def _ranked(fitting: Sequence[RankedLayout], apart: float) -> tuple[RankedLayout, ...]:
    """Return the fastest layout of each way to spread the model, the fastest first.

    All recompute everything only if they have to: that is a third more work (Megatron-Core MoE,
    README, Profiling Bottlenecks).  Those are left out that split tensors further for a gain of no
    more than a factor of exp(``apart``), since a large part of a tensor keeps a GPU busy
    (Megatron-Bridge's performance guide, Lowering Host Overhead and Jitters, 2).  Products that run
    again for want of memory are work whatever the error (Parallel Mapping Strategies, 2).
    """
    cheap = [each for each in fitting if each.layout.recompute != "everything"]
    spread: dict[tuple[int, ...], list[RankedLayout]] = defaultdict(list)
    for each in cheap or fitting:
        spread[each.layout.tp, each.layout.cp, each.layout.ep, each.layout.pp].append(each)
    found = [_fastest(alike) for alike in spread.values()]
    kept: dict[tuple[int, int, bool], list[RankedLayout]] = defaultdict(list)
    for each in sorted(found, key=lambda each: (each.layout.tp * each.layout.cp, each.step_s)):
        own, limit = each.layout, each.step_s * math.exp(apart)
        alike = kept[own.ep, own.pp, own.zero == 3]
        again = max(_RECOMPUTE.index(own.recompute), _CHEAP)
        if not any(
            other.step_s <= limit and _RECOMPUTE.index(layout.recompute) <= again
            for other in alike
            if (layout := other.layout).tp <= own.tp and layout.cp <= own.cp
        ):
            alike.append(each)
    return tuple(sorted(chain.from_iterable(kept.values()), key=lambda each: each.step_s))


def _fastest(alike: Iterable[RankedLayout]) -> RankedLayout:
    """Return the fastest layout; only those that may still be it are replayed."""
    best, *others = sorted(alike, key=lambda each: each.made.least_s)
    for each in others:
        if each.made.least_s >= best.step_s:
            break
        best = min(best, each, key=lambda each: each.step_s)
    return best


def _gpus(cluster: Cluster) -> tuple[int, Machine]:
    match cluster:
        case count, Machine() as kind:
            return count, kind
        case count, str() as name:
            return count, machine(name)
        case str() if written := re.fullmatch(r"0*([1-9]\d{0,6}) ?x ?(.+)", cluster):
            return int(written[1]), machine(written[2])
    raise ValueError(f"a cluster is a count and a device, e.g. 64xH100, not {cluster!r}")


def _least_recomputed(run: TrainingSetup, room: float) -> RankedLayout:
    """Return a training with the least recomputation that fits, or with all.

    Megatron-Core does not recompute everything in CUDA graphs.
    """
    for recompute in _RECOMPUTE[:-1] if run.graphs else _RECOMPUTE:
        again = replace(run, layout=replace(run.layout, recompute=recompute))
        found = RankedLayout(again, tuple(peak_bytes(again)))
        if max(found.peak_bytes) <= room:
            break
    return found
