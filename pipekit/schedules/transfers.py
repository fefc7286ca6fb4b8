"""Ops that move data while a worker computes: to the host, to a partner, within a sharded group.

The host's or a partner's memory takes activations until their backward comes near (PipeOffload,
Wan et al., arXiv 2503.01328; BPipe, Kim et al., ICML 2023); weights are gathered from the workers
that share them and given up again (fully sharded data parallelism, Zhao et al., arXiv 2304.11277;
the letters' names are those of torch's pipelining: UNSHARD, RESHARD, REDUCE_GRAD).
"""

from pipekit.schedules.ops import (
    ACTIVATIONS,
    GRADIENTS,
    OFFLOADED,
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
