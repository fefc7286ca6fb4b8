"""A training to predict: model, layout, machine, what was fitted of them, and the framework, each
of which does some things differently, as values with a physical meaning."""

from dataclasses import dataclass, replace
from functools import cached_property

from pipekit.choices import require_choice
from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import Machine
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.shapes import Shape
from pipekit.performance.terms.collectives import Links
from pipekit.performance.terms.kernels import Kernels, PassCosts, total

Pair = tuple[float, float]  # of a forward, and of a backward
SAME_CHIP = {"H200": "H100", "GH200": "H100"}  # they differ in their memory alone


@dataclass(frozen=True)
class Framework:
    """How a framework runs a transformer's training step; bytes are moved, unless they are held."""

    name: str  # constants are fitted for it and a device
    flash_attention: bool  # whether scores stay on chip (Dao et al., FlashAttention)
    # Whether norms and residuals are split over tp (Korthikanti et al., arXiv 2205.05198), and, if
    # so, whether tp's collectives run beside products; else the device waits for them.
    sequence_parallel: bool
    overlaps_tensor_parallel: bool
    residual_bytes: Pair  # of each element of a residual connection, dropout and bias included
    head_bytes: Pair  # of each element of queries and keys: biases and transposes, rotation
    logit_bytes: Pair  # of each logit, by the loss
    accumulation_bytes: float  # of each weight, to add a microbatch's gradient to those before
    attention_launches: Pair  # kernels that a host launches for a layer
    mlp_launches: Pair
    collective_launches: float  # kernels that the host is late with after a collective that blocks
    gradient_bytes: float  # of each weight's gradient in the reduce-scatter between replicas
    overlaps_replicas: bool  # whether that runs beside the passes
    optimizer_bytes: float  # of each weight of an optimizer's shard
    pads_vocabulary: bool  # even if it is not split
    states_held: float  # bytes of the optimizer's states, a master copy included; the weight has 2
    mask_held: float  # bytes of each element of a residual connection for its dropout
    gradients_held: float = 4  # bytes that a rank keeps of each weight's gradients
    logit_held: float = 6  # bytes of each logit at the peak of the loss


MEGATRON_DEEPSPEED = Framework(
    "Megatron-DeepSpeed",
    flash_attention=False,
    sequence_parallel=False,
    overlaps_tensor_parallel=False,
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
    states_held=16,
    mask_held=1,
)
"""github.com/microsoft/Megatron-DeepSpeed of 2022: float16, gradients summed in it (read, read,
write), losses in float32 one kernel after the other; Adam reads and writes weight and two moments
and reads the gradient.  Gradients are held twice (Megatron's contiguous buffer), and once more in
float32 beside the master copy."""

MEGATRON_CORE = Framework(
    "Megatron-Core",
    flash_attention=True,
    sequence_parallel=True,
    overlaps_tensor_parallel=True,
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
    states_held=12,
    mask_held=0,
)
"""github.com/NVIDIA/Megatron-LM (core) of 2024 and later with Transformer Engine: fused kernels,
gradients summed in float32, a distributed optimizer beside the passes."""

MEGATRON_BRIDGE = replace(MEGATRON_CORE, accumulation_bytes=6, gradient_bytes=2, gradients_held=2)
"""github.com/NVIDIA-NeMo/Megatron-Bridge (``scripts/performance``): its recipes sum and reduce
gradients in bfloat16 (``grad_reduce_in_fp32 = False``)."""

TORCHTITAN = replace(MEGATRON_CORE, name="torchtitan", states_held=10, logit_held=14)
"""github.com/pytorch/torchtitan: FSDP2 with weights in float32 beside the 2-byte copies, and a loss
of plain operators: logits, in float32, their log-softmax, and its gradient."""


@dataclass(frozen=True)
class TrainingSetup:
    """One training, of which each term reads what it needs."""

    shape: Shape
    layout: ParallelLayout
    links: Links
    framework: Framework
    constants: Constants  # fitted for the framework on the machine
    dtype: str  # of the products: "float16", "bfloat16", "float8" or "float4"
    seq_tokens: int  # of a sequence
    trains_weights: bool = True  # False: they are frozen, beside small adapters (LoRA)
    graphs: bool = False  # whether a pass is launched as one CUDA graph, and waits for no host

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(
            self.links.machine,
            self.dtype,
            self.constants.efficiency,
            self.framework.accumulation_bytes,
            self.trains_weights,
        )

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on each context-parallel rank."""
        return self.layout.microbatch_samples * self.seq_tokens / self.layout.cp

    @property
    def launch_s(self) -> float:
        """Seconds in which a host launches one kernel."""
        return 0.0 if self.graphs else self.constants.overhead_s

    def residual(self) -> PassCosts:
        """Return the passes of a norm and a residual connection, split over tp if sequences are."""
        split = self.layout.tp if self.framework.sequence_parallel else 1
        elements = self.tokens * self.shape.hidden / split
        forward, backward = self.framework.residual_bytes
        return self.kernels.both((4 + forward) * elements, (8 + backward) * elements)

    def sublayer(self, *inside: PassCosts, launches: Pair) -> PassCosts:
        """Return the passes of what is ``inside``, with the sum over tp, the norm, the residual."""
        around = self.tensor_parallel(), self.residual(), PassCosts(0, 0, *launches)
        return total(*inside, *around)

    def activation(self, rows: float, width: float, gated: bool) -> PassCosts:
        """Return the passes of what is between the products of an MLP: elements of 2 bytes."""
        elements = 2 * rows * width
        return self.kernels.both((2 + gated) * elements, (3 + 2 * gated) * elements)

    def tensor_parallel(self) -> PassCosts:
        """Return what a layer waits for tp: a sum of its outputs, another of their gradients.

        With sequences split there are two collectives forward and three backward.  Beside products
        they run in as many parts as there are ranks, and only one part of each is not hidden (Wang
        et al., Overlap Communication with Dependent Computation, ASPLOS 2023).
        """
        ranks = self.layout.tp
        if ranks == 1:
            return PassCosts()
        size = 2 * self.tokens * self.shape.hidden
        if self.framework.sequence_parallel:
            parts = ranks if self.framework.overlaps_tensor_parallel else 1
            each = (self.links.scatter(ranks, size) + 10e-6) / parts
            return PassCosts(2 * each, 3 * each)
        late = self.framework.collective_launches * self.constants.overhead_s
        each = self.links.all_reduce(ranks, size) + late
        return PassCosts(each, each, 2, 2)


def training(
    shape: Shape,
    layout: ParallelLayout,
    machine: Machine,
    framework: Framework,
    *,
    seq_tokens: int,
    dtype: str = "bfloat16",
) -> TrainingSetup:
    """Return a training by its machine's fitted constants; ValueError if it cannot be run so."""
    layout.require_suited(shape)
    if dtype in ("float8", "float4"):  # Transformer Engine refuses devices without units
        require_choice(f"dtype on {machine.device.name}", dtype, machine.dtypes)
    own = fitted().constants(on(framework, machine))
    return TrainingSetup(shape, layout, Links(machine), framework, own, dtype, seq_tokens)


def on(framework: Framework, machine: Machine) -> str:
    """Return what constants are fitted for, say "Megatron-Core on H100"."""
    chip, *_ = machine.device.name.split()
    return f"{framework.name} on {SAME_CHIP.get(chip, chip)}"
