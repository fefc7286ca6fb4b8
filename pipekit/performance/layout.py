"""How a training is spread over GPUs: degrees and rules, and refusals of what does not divide."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from pipekit.choices import require_choice
from pipekit.names import METHODS

Recompute = Literal["nothing", "activations", "selective", "experts", "everything"]
"""What runs again before a backward: norms and experts' activations (Megatron-Core's modules
``layernorm`` and ``moe_act``); every second product, too ("selective" of torchtitan); mixtures of
experts; or all layers."""


@dataclass(frozen=True)
class ParallelLayout:
    """Degrees of parallelism, and what a rank does.

    Attributes:
        tp, cp, ep, pp, dp: tensor, context, expert, pipeline and data parallel degrees; experts
            are spread inside the tp x cp x dp ranks of a stage.
        chunks: virtual stages of each pipeline rank.
        microbatch_samples: sequences in a microbatch.
        microbatches: of each replica and step.
        zero: stage of ZeRO (Rajbhandari et al., SC '20): 1 shards the optimizer over dp x cp, 2 the
            gradients, 3 the weights.
        recompute: what runs its forward again before its backward.
        spreads_vocabulary: whether each pipeline rank has a part of embedding and head (Yeung,
            Qi et al., Pipeline Parallelism with Vocabulary Parallelism, arXiv 2411.05288), which
            else are on the first and the last stage.
        method: a name of :data:`pipekit.names.METHODS`.

    Raises:
        ValueError: a degree is no positive whole number, or degrees do not divide one another.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int = 1
    chunks: int = 1
    microbatch_samples: int = 1
    microbatches: int = 1
    zero: int = 0
    recompute: Recompute = "nothing"
    spreads_vocabulary: bool = False
    method: str = "flush"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (value != int(value) or value < (field.name != "zero")):
                raise ValueError(f"{field.name} must be a positive whole number, not {value}")
        require_choice("zero", self.zero, range(4))
        METHODS.require(self.method)
        if self.tp * self.cp * self.dp % self.ep:
            raise ValueError(
                f"ep {self.ep} does not divide tp x cp x dp = {self.tp * self.cp * self.dp}: "
                f"experts are spread over the ranks of a stage"
            )

    @property
    def gpus(self) -> int:
        """How many GPUs all replicas take together."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def stages(self) -> int:
        """How many virtual stages there are."""
        return self.pp * self.chunks

    @property
    def expert_replicas(self) -> int:
        """How many ranks of a stage hold the same experts."""
        return self.tp * self.cp * self.dp // self.ep


def on_gpus(
    gpus: int, global_batch_samples: int, *, tp: int = 1, cp: int = 1, pp: int = 1, **rest: object
) -> ParallelLayout:
    """Return the layout of so many GPUs and samples a step; dp and microbatches follow.

    Raises:
        ValueError: the degrees do not divide the GPUs, or the batch.
    """
    dp, over = divmod(gpus, tp * cp * pp)
    if over or not dp:
        raise ValueError(f"tp {tp} x cp {cp} x pp {pp} does not divide {gpus} GPUs")
    samples = int(rest.get("microbatch_samples", 1))  # type: ignore[call-overload]
    microbatches, over = divmod(global_batch_samples, dp * samples)
    if over or not microbatches:
        raise ValueError(
            f"a batch of {global_batch_samples} samples is no whole number of microbatches of "
            f"{samples} for {dp} replicas: the next larger batch is "
            f"{math.ceil(global_batch_samples / (dp * samples)) * dp * samples}"
        )
    return ParallelLayout(tp=tp, cp=cp, pp=pp, dp=dp, microbatches=microbatches, **rest)  # type: ignore[arg-type]


def beside_head(layers: int, stages: int, head: float) -> list[int]:
    """Return how many layers each stage has: equally many, or, if that leaves a rest, balanced.

    Then the head, which costs ``head`` layers, takes their place on the last stage, and the
    embedding that of one on the first if there is a choice: Megatron-LM's
    ``--pipeline-model-parallel-layout`` as its users write it.

    Raises:
        ValueError: there are fewer layers than stages between the ends.
    """
    if layers < stages - 2:
        raise ValueError(f"{layers} layers are too few for {stages} stages")
    if layers % stages == 0:
        return [layers // stages] * stages
    most = -(-layers // stages)
    while most * (stages - 1) + _layers_beside(head, most) < layers:
        most += 1
    last = _layers_beside(head, most)
    each, more = divmod(layers - last, stages - 1)
    return [each + (stage >= stages - 1 - more) for stage in range(stages - 1)] + [last]


def _layers_beside(head: float, most: int) -> int:
    """Return how many layers a stage of ``most`` layers' cost has beside the head."""
    return max(math.floor(most - head), 0)
