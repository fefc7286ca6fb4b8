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


class Payload(Enum):
    """What a message between stages carries; the value is its name in a trace's transfers.

    An activation goes to the stage behind, and its gradient comes back.
    """

    ACTIVATION = "activation"
    GRADIENT = "gradient"

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
        activation_share: likewise, in shares of them that the backward for the input frees.  The
            share differs from model to model, so that a profile says how much it is.
        is_pass: whether it reads a weight version for a microbatch; otherwise it makes one.
    """

    own: Op | None = None
    receives: Payload | None = None
    sends: Payload | None = None
    adds_gradient: bool = False
    activation: int = 0
    activation_share: int = 0
    is_pass: bool = True

    def activation_change(self, share: float) -> float:
        """Return by how many microbatches' activations the stage keeps more, or less, after it.

        Args:
            share: the part of an activation that the backward for the input frees, 0 to 1.
        """
        return self.activation + self.activation_share * share


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
            activation_share=-1,
        ),
        Op.BACKWARD_WEIGHT: OpRule(
            own=Op.BACKWARD_INPUT,
            adds_gradient=True,
            activation=-1,
            activation_share=1,
        ),
        Op.UPDATE: OpRule(is_pass=False),
    }
)
"""The rule of every op."""

PASSES = tuple(op for op, rule in OPS.items() if rule.is_pass)
"""The ops that read weights: all but the update."""

ADDING = tuple(op for op, rule in OPS.items() if rule.adds_gradient)
"""The ops that add to the gradient of the weights; a microbatch has one of them on each stage."""

SENDERS: Mapping[Payload, tuple[Op, ...]] = MappingProxyType(
    {payload: tuple(op for op, rule in OPS.items() if rule.sends is payload) for payload in Payload}
)
"""The ops that send a payload; a microbatch has one of them on each stage."""
