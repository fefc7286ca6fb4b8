"""What the tasks of a pipeline do: one table, which everything that treats an op apart reads.

A backward pass is either whole (B), or split in two (Qi et al., "Zero Bubble Pipeline Parallelism",
ICLR 2024): one part for the input, whose gradient another stage waits for (I), and one for the
weights, whose gradient only the update needs (W).  The letters are those of PyTorch's
``torch.distributed.pipelining``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class Op(Enum):
    """What a task does; the value is its letter in a picture."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UPDATE = "U"

    # There is one object a member; hashing the name, as Enum does, would take most of a look-up.
    __hash__ = object.__hash__


class Payload(Enum):
    """What a message between stages carries; the value is its name in a trace's transfers.

    An activation goes to the stage behind, and its gradient comes back.
    """

    ACTIVATION = "activation"
    GRADIENT = "gradient"

    __hash__ = object.__hash__  # as above

    @property
    def step(self) -> int:
        """What to add to a stage's number for the stage that a message of it is sent to."""
        return 1 if self is Payload.ACTIVATION else -1


@dataclass(frozen=True)
class OpRule:
    """What an op needs and does.

    Attributes:
        own: the pass of the same stage and microbatch that must come before it on the same worker.
        receives: what comes in from a neighbouring stage, if there is one on that side.
        sends: what goes out to a neighbouring stage, likewise.
        adds_gradient: whether it adds to the gradient of the weights, which updates sum.  A
            microbatch has left the stage when its gradient has been added.
        activation: what it adds to the activations that the stage keeps, in those of a microbatch.
        activation_part: likewise, in the part of them that the backward for the input frees.  How
            much that is differs from model to model: a profile says it.
        is_pass: whether it reads a weight version for a microbatch; otherwise it makes one.
    """

    own: Op | None = None
    receives: Payload | None = None
    sends: Payload | None = None
    adds_gradient: bool = False
    activation: int = 0
    activation_part: int = 0
    is_pass: bool = True

    def activation_bytes(self, whole: float, part: float) -> float:
        """Return by how many bytes of activations the stage keeps more after it, or less.

        Args:
            whole: bytes of a microbatch's activations.
            part: of these, the bytes that the backward for the input frees.
        """
        return self.activation * whole + self.activation_part * part


OPS: Mapping[Op, OpRule] = MappingProxyType(
    {
        Op.FORWARD: OpRule(
            receives=Payload.ACTIVATION,
            sends=Payload.ACTIVATION,
            activation=1,
        ),
        Op.BACKWARD: OpRule(
            own=Op.FORWARD,
            receives=Payload.GRADIENT,
            sends=Payload.GRADIENT,
            adds_gradient=True,
            activation=-1,
        ),
        Op.BACKWARD_INPUT: OpRule(
            own=Op.FORWARD,
            receives=Payload.GRADIENT,
            sends=Payload.GRADIENT,
            activation_part=-1,
        ),
        Op.BACKWARD_WEIGHT: OpRule(
            own=Op.BACKWARD_INPUT,
            adds_gradient=True,
            activation=-1,
            activation_part=1,
        ),
        Op.UPDATE: OpRule(is_pass=False),
    }
)
"""The rule of every op."""

PASSES = tuple(op for op, rule in OPS.items() if rule.is_pass)
"""The ops that read weights: all but the update."""

ADDING = tuple(op for op, rule in OPS.items() if rule.adds_gradient)
"""The ops that add to the gradient of the weights; a microbatch has one of them on each stage."""

RECEIVERS: Mapping[Payload, tuple[Op, ...]] = MappingProxyType(
    {p: tuple(op for op, rule in OPS.items() if rule.receives is p) for p in Payload}
)
"""The ops that receive a payload; a microbatch has one of them on each stage."""

SENDERS: Mapping[Payload, tuple[Op, ...]] = MappingProxyType(
    {p: tuple(op for op, rule in OPS.items() if rule.sends is p) for p in Payload}
)
"""The ops that send a payload; a microbatch has one of them on each stage."""
