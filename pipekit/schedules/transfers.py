"""Ops that move data while a worker computes: to the host, to a partner, within a sharded group.

Activations lie on the host or with a partner until their backward (PipeOffload, Wan et al., arXiv
2503.01328; BPipe, Kim et al., ICML 2023); weights are gathered from the workers that share them
(fully sharded data parallelism, Zhao et al., arXiv 2304.11277; names as in torch's pipelining), or
go from worker to worker with their gradients (WeiPipe, Lin et al., PPoPP 2025).
"""

from pipekit.schedules.ops import (
    ACTIVATIONS,
    GRADIENTS,
    OFFLOADED,
    SENT_GRADIENTS,
    SENT_WEIGHTS,
    SUMS,
    WEIGHTS,
    Op,
)

OFFLOAD = Op(
    "O", "OFFLOAD", takes=(ACTIVATIONS,), gives=(OFFLOADED,), stream="offload", moves=ACTIVATIONS
)
"""Sends a microbatch's activations to the host, or with ``to`` to another worker."""

LOAD = Op("L", "LOAD", takes=(OFFLOADED,), gives=(ACTIVATIONS,), stream="load", moves=ACTIVATIONS)
"""Brings them back from there."""

GATHER = Op("G", "UNSHARD", gives=(WEIGHTS,), stream="gather", moves=WEIGHTS)
"""Gathers a stage's weights of a version from the workers that share them."""

DISCARD = Op("D", "RESHARD", takes=(WEIGHTS,), stream="discard", slots=0)
"""Gives up all of them but the worker's own share."""

SUM = Op("S", "REDUCE_GRAD", takes=(GRADIENTS,), gives=(SUMS,), stream="sum", moves=GRADIENTS)
"""Sums a stage's gradients over the workers that share it, and keeps the worker's own share."""

SEND_WEIGHTS = Op("T", "SEND_WEIGHTS", (WEIGHTS,), gives=(SENT_WEIGHTS,), stream="send", slots=0)
"""Has, with ``to``, a copy of a stage's weights ready for a worker that has none of its own."""

RECEIVE_WEIGHTS = Op(
    "A",
    "RECEIVE_WEIGHTS",
    takes=(SENT_WEIGHTS,),
    gives=(WEIGHTS,),
    stream="weights",
    slots=0,
    moves=SENT_WEIGHTS,
)
"""Brings the copy from there, with ``to`` its worker, for one DISCARD."""

SEND_GRADIENTS = Op(
    "H", "SEND_GRADIENTS", takes=(GRADIENTS,), gives=(SENT_GRADIENTS,), stream="send", slots=0
)
"""Has all that a worker has summed of a stage's gradients ready for another one."""

RECEIVE_GRADIENTS = Op(
    "C",
    "RECEIVE_GRADIENTS",
    takes=(SENT_GRADIENTS,),
    gives=(GRADIENTS,),
    stream="gradients",
    slots=0,
    moves=SENT_GRADIENTS,
)
"""Brings them from there, and adds them to the worker's own."""
