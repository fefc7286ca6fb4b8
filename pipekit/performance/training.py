"""A training to predict: model, layout, machine, framework, and what was fitted of them."""

from dataclasses import dataclass
from functools import cached_property

from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import Machine
from pipekit.performance.frameworks import Framework
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.shapes import Shape
from pipekit.performance.terms.collectives import Links
from pipekit.performance.terms.kernels import Kernels, PassCosts


@dataclass(frozen=True)
class TrainingSetup:
    """One training, of which each term reads what it needs.

    Attributes:
        shape: the model.
        layout: the degrees.
        links: the machine and its links.
        framework: how passes are run.
        constants: fitted for the framework on the machine.
        dtype: of the products: "float16", "bfloat16", "float8" or "float4".
        seq_tokens: tokens of a sequence.
        trains_weights: False if the weights are frozen, beside small adapters (LoRA).
        graphs: whether a pass is launched as one CUDA graph: no kernel waits for the host.
    """

    shape: Shape
    layout: ParallelLayout
    links: Links
    framework: Framework
    constants: Constants
    dtype: str
    seq_tokens: int
    trains_weights: bool = True
    graphs: bool = False

    @cached_property
    def kernels(self) -> Kernels:
        """What kernels take."""
        return Kernels(self.links.machine, self.dtype, self.constants.efficiency)

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch on each context-parallel rank."""
        return self.layout.microbatch_samples * self.seq_tokens / self.layout.cp

    @property
    def launch_s(self) -> float:
        """Seconds in which a host launches one kernel."""
        return 0.0 if self.graphs else self.constants.overhead_s

    def linear(
        self, rows: float, inputs: float, outputs: float, batch: float = 1, dtype: str = ""
    ) -> PassCosts:
        """Return the passes of ``batch`` linear layers."""
        return self.kernels.linear(
            rows,
            inputs,
            outputs,
            batch,
            dtype=dtype,
            accumulation_bytes=self.framework.accumulation_bytes,
            trained=self.trains_weights,
        )

    def residual(self) -> PassCosts:
        """Return the passes of a norm and a residual connection, split over tp if sequences are."""
        split = self.layout.tp if self.framework.sequence_parallel else 1
        elements = self.tokens * self.shape.hidden / split
        forward, backward = self.framework.residual_bytes
        return self.kernels.both((4 + forward) * elements, (8 + backward) * elements)

    def activation(self, rows: float, width: float, gated: bool) -> PassCosts:
        """Return the passes of what is between the products of an MLP: elements of 2 bytes."""
        elements = 2 * rows * width
        return self.kernels.both((2 + gated) * elements, (3 + 2 * gated) * elements)

    def tensor_parallel(self) -> PassCosts:
        """Return what a layer waits for tp: a sum of its outputs, another of their gradients.

        With sequences split, two collectives forward and three backward run beside products, in as
        many parts as there are ranks; only a part of each is not hidden (Wang et al., Overlap
        Communication with Dependent Computation, ASPLOS 2023).
        """
        ranks = self.layout.tp
        if ranks == 1:
            return PassCosts()
        size = 2 * self.tokens * self.shape.hidden
        if self.framework.sequence_parallel:
            each = (self.links.scatter(ranks, size) + 10e-6) / ranks
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
    """Return a training by the constants that were fitted for its framework and device."""
    own = fitted().constants(on(framework, machine))
    return TrainingSetup(shape, layout, Links(machine), framework, own, dtype, seq_tokens)


def on(framework: Framework, machine: Machine) -> str:
    """Return what constants are fitted for, say "Megatron-Core on H100"."""
    return f"{framework.name} on {machine.device.name.partition(' ')[0]}"
