"""What training frameworks do differently, each as a value with a physical meaning."""

from dataclasses import dataclass, replace

Pair = tuple[float, float]
"""Of a forward, and of a backward."""


@dataclass(frozen=True)
class Framework:
    """How a framework runs a transformer's training step.

    Attributes:
        name: of the framework; constants are fitted for it and a device.
        flash_attention: whether scores stay on chip (Dao et al., FlashAttention); else they are
            written out and read, several times.
        sequence_parallel: whether norms and residuals are split over tp, and tp's collectives run
            beside products (Korthikanti et al., arXiv 2205.05198); else tp all-reduces, and the
            device waits.
        residual_bytes: moved for each element of a residual connection, dropout and bias included.
        head_bytes: moved for each element of queries and keys: biases and transposes, rotation.
        logit_bytes: moved for each logit by the loss.
        accumulation_bytes: moved for each weight to add a microbatch's gradient to those before.
        attention_launches, mlp_launches: kernels that a host launches for a layer.
        collective_launches: kernels that the host is late with after a collective that blocks it.
        gradient_bytes: of each weight's gradient in the reduce-scatter between replicas.
        overlaps_replicas: whether that runs beside the passes.
        optimizer_bytes: moved for each weight of an optimizer's shard.
        pads_vocabulary: whether a vocabulary is padded even if it is not split.
        gradients_held, states_held: bytes that a rank keeps of each weight's gradients, and of the
            optimizer's states, a master copy included; the weight itself has 2.
        mask_held: bytes kept of each element of a residual connection for its dropout.
        logit_held: bytes of each logit at the peak of the loss.
    """

    name: str
    flash_attention: bool
    sequence_parallel: bool
    residual_bytes: Pair
    head_bytes: Pair
    logit_bytes: Pair
    accumulation_bytes: float
    attention_launches: Pair
    mlp_launches: Pair
    collective_launches: float
    gradient_bytes: float
    overlaps_replicas: bool
    optimizer_bytes: float
    pads_vocabulary: bool
    gradients_held: float
    states_held: float
    mask_held: float
    logit_held: float


MEGATRON_DEEPSPEED = Framework(
    "Megatron-DeepSpeed",
    flash_attention=False,
    sequence_parallel=False,
    residual_bytes=(7, 9),
    head_bytes=(8, 8),
    logit_bytes=(34, 14),
    accumulation_bytes=6,
    attention_launches=(20, 20),
    mlp_launches=(13, 13),
    collective_launches=7,
    gradient_bytes=2,
    overlaps_replicas=False,
    optimizer_bytes=20,
    pads_vocabulary=False,
    gradients_held=4,
    states_held=16,
    mask_held=1,
    logit_held=6,
)
"""github.com/microsoft/Megatron-DeepSpeed of 2022: float16, gradients summed in it (read, read,
write), losses in float32 one kernel after the other; Adam reads and writes weight and two moments
and reads the gradient.  Gradients are held twice (Megatron's contiguous buffer), and once more in
float32 beside the master copy."""

MEGATRON_CORE = Framework(
    "Megatron-Core",
    flash_attention=True,
    sequence_parallel=True,
    residual_bytes=(6, 4),
    head_bytes=(4, 4),
    logit_bytes=(10, 6),
    accumulation_bytes=8,
    attention_launches=(16, 24),
    mlp_launches=(9, 14),
    collective_launches=0,
    gradient_bytes=4,
    overlaps_replicas=True,
    optimizer_bytes=30,
    pads_vocabulary=True,
    gradients_held=4,
    states_held=12,
    mask_held=0,
    logit_held=6,
)
"""github.com/NVIDIA/Megatron-LM (core) of 2024 and later with Transformer Engine: fused kernels,
gradients summed in float32, a distributed optimizer beside the passes."""

MEGATRON_BRIDGE = replace(MEGATRON_CORE, accumulation_bytes=6, gradient_bytes=2, gradients_held=2)
"""github.com/NVIDIA-NeMo/Megatron-Bridge (``scripts/performance``): its recipes sum and reduce
gradients in bfloat16 (``grad_reduce_in_fp32 = False``)."""

TORCHTITAN = replace(MEGATRON_CORE, name="torchtitan", states_held=10, logit_held=14)
"""github.com/pytorch/torchtitan: FSDP2 with weights in float32 beside the 2-byte copies, and a loss
of plain operators: logits, in float32, their log-softmax, and its gradient."""
