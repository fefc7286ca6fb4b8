"""How a training is spread over GPUs: degrees and rules, and all ways whose degrees divide."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count, product
from typing import Any, Literal

from pipekit.choices import require_choice
from pipekit.performance.devices import Machine
from pipekit.performance.shapes import MLP, Experts, Mamba, Shape

Recompute = Literal["nothing", "activations", "selective", "experts", "everything"]
"""What runs again before a backward: norms, experts' activations and latent attention's projections
up (Megatron-Core); every second product, too (torchtitan); mixtures of experts; or all layers."""

_LEAST_TOKENS = 4096  # on a context-parallel rank: with fewer, messages cost more than they save
_CHUNKS, _SAMPLES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24), (1, 2, 4, 8)
_MOST_STAGES = 256  # twice those of the deepest published pipelines; a larger table takes seconds
_SERVER_GPUS = 8
"""Of a node; links that join more join a rack, and all-to-alls stay inside (Megatron-Bridge's
performance guide, Parallel mapping strategies with NVL72)."""


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees of parallelism, and what a rank does; ValueError if they do not fit together."""

    tp: int = 1  # tensor parallel
    cp: int = 1  # context parallel
    ep: int = 1  # experts are spread inside the tp x cp x dp ranks of a stage
    pp: int = 1  # pipeline parallel
    dp: int = 1  # data parallel
    chunks: int = 1  # virtual stages of each pipeline rank
    microbatch_samples: int = 1
    microbatches: int = 1  # of each replica and step
    # Stage of ZeRO (Rajbhandari et al., SC '20): 1 shards the optimizer over dp x cp, 2 the
    # gradients, 3 the weights.
    zero: int = 0
    recompute: Recompute = "nothing"
    # Whether each pipeline rank has a part of embedding and head (Yeung, Qi et al., Pipeline
    # Parallelism with Vocabulary Parallelism, arXiv 2411.05288), else the first and last stage.
    spreads_vocabulary: bool = False
    # Whether messages between experts run beside the passes of another microbatch (Megatron-Core's
    # batch-level overlap).
    overlaps_experts: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (value != int(value) or value < (field.name != "zero")):
                raise ValueError(f"{field.name} must be a positive whole number, not {value}")
        require_choice("zero", self.zero, range(4))
        if self.tp * self.cp * self.dp % self.ep:
            raise ValueError(
                f"ep {self.ep} does not divide tp x cp x dp = {self.tp * self.cp * self.dp}: "
                f"experts are spread over the ranks of a stage"
            )

    def require_suited(self, shape: Shape) -> None:
        """Raise ValueError unless tp divides the heads of each layer, and ep its experts."""
        for layer, _ in shape.each_layer():
            heads, experts = getattr(layer, "heads", 0), getattr(layer, "count", 0)
            if heads % self.tp:
                raise ValueError(f"tp {self.tp} does not divide the {heads} heads of {shape.name}")
            if experts % self.ep:
                raise ValueError(
                    f"ep {self.ep} does not divide the {experts} experts of {shape.name}"
                )

    @property
    def gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def global_batch_samples(self) -> int:
        """Of a step, over all replicas."""
        return self.microbatch_samples * self.microbatches * self.dp

    @property
    def stages(self) -> int:
        """How many virtual stages there are; stage s is on pipeline rank s modulo pp."""
        return self.pp * self.chunks

    @property
    def method(self) -> str:
        """The schedule: 1F1B, interleaved with virtual stages."""
        return "interleaved" if self.chunks > 1 else "flush"

    @property
    def expert_replicas(self) -> int:
        """How many ranks of a stage hold the same experts."""
        return self.tp * self.cp * self.dp // self.ep


def on_gpus(
    gpus: int,
    global_batch_samples: int,
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    microbatch_samples: int = 1,
    **rest: Any,
) -> ParallelLayout:
    """Return the layout of so many GPUs and samples a step; ValueError if these do not divide."""
    dp, over = divmod(gpus, tp * cp * pp)
    if over or not dp:
        raise ValueError(f"tp {tp} x cp {cp} x pp {pp} does not divide {gpus} GPUs")
    slot = dp * microbatch_samples
    microbatches, over = divmod(global_batch_samples, slot)
    if over or not microbatches:
        raise ValueError(
            f"a batch of {global_batch_samples} samples is no whole number of microbatches of "
            f"{microbatch_samples} for {dp} replicas: the next larger batch is "
            f"{math.ceil(global_batch_samples / slot) * slot}"
        )
    own: dict[str, Any] = {"microbatch_samples": microbatch_samples, "microbatches": microbatches}
    return ParallelLayout(tp=tp, cp=cp, pp=pp, dp=dp, **own, **rest)


def beside_head(layers: int, stages: int, head: float) -> list[int]:
    """Return how many layers each stage has: equally many, or, if that leaves a rest, balanced.

    Then the head takes the place of ``head`` layers on the last stage, as users of Megatron-LM's
    ``--pipeline-model-parallel-layout`` write it.  ValueError if there are too few layers.
    """
    if layers < stages - 2:
        raise ValueError(f"{layers} layers are too few for {stages} stages")
    if layers % stages == 0:
        return [layers // stages] * stages
    for most in count(-(-layers // stages)):
        last = max(math.floor(most - head), 0)
        if most * (stages - 1) + last >= layers:
            break
    each, more = divmod(layers - last, stages - 1)
    return [each + (stage >= stages - 1 - more) for stage in range(stages - 1)] + [last]


def layouts(
    known: Shape, kind: Machine, gpus: int, batch: int, seq_tokens: int
) -> Iterator[ParallelLayout]:
    """Yield the layouts of so many GPUs and samples a step, without recomputation.

    Megatron-Core's hybrids of Mamba have no virtual stages, nor messages between experts beside
    passes (megatron/core/models/mamba/mamba_model.py).
    """
    layers = [layer for layer, _ in known.each_layer()]
    hybrid = any(isinstance(layer, Mamba) for layer in layers)
    heads = math.gcd(*(layer.heads for layer in layers if not isinstance(layer, MLP | Experts)))
    experts = math.gcd(*(layer.count for layer in layers if isinstance(layer, Experts))) or 1
    most_ep = experts if kind.node_gpus <= _SERVER_GPUS else kind.node_gpus
    for tp in _divisors(math.gcd(gpus, heads), kind.node_gpus):
        for cp in _divisors(gpus // tp, max(seq_tokens // _LEAST_TOKENS, 1)):
            if seq_tokens % (tp * cp * (2 if cp > 1 else 1)):
                continue  # Megatron-LM cuts sequences into equal parts, two for each cp rank
            for pp in _divisors(gpus // (tp * cp), min(known.layers, _MOST_STAGES)):
                dp, stage_gpus = gpus // (tp * cp * pp), gpus // pp
                # In a pipeline whole weights stay on their ranks between passes.
                sharding = (0,) if dp * cp == 1 else (1,) if pp > 1 else (1, 3)
                for samples in _SAMPLES:
                    microbatches, over = divmod(batch, dp * samples)
                    if over or not microbatches:
                        continue
                    # Megatron-LM interleaves whole rounds of microbatches, one for each rank.
                    loops = pp > 1 and microbatches % pp == 0 and not hybrid
                    most_chunks = min(known.layers + 2, _MOST_STAGES) // pp if loops else 1
                    for chunks, ep, zero, overlaps in product(
                        [each for each in _CHUNKS if each <= most_chunks],
                        _divisors(math.gcd(stage_gpus, experts), most_ep),
                        sharding,
                        (False,) if hybrid else (False, True),
                    ):
                        # Megatron-Core takes virtual stages for it, or one stage.
                        if overlaps and (ep <= kind.node_gpus or (pp > 1 and chunks == 1)):
                            continue
                        yield ParallelLayout(
                            *(tp, cp, ep, pp, dp, chunks, samples, microbatches, zero),
                            overlaps_experts=overlaps,
                        )


def _divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number above 0, up to a limit; none of 0."""
    return [each for each in range(1, min(number, most) + 1) if number % each == 0]
