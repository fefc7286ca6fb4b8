"""What PipeDream-2BW's section 5 and its figures fix, as data.

The text prints no dimensions of the models (:data:`pipekit.models.LAYOUTS` are ours) and no
bandwidths (:func:`pipekit.clusters.papers.two_bw_v100` has those of the makers' sheets).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SIZES = "1.3B", "2.2B", "3.8B"
"""Of the GPTs, by their names in :data:`pipekit.models.LAYOUTS`; "Models" in section 5 prints
3.9 billion for the largest, the rest of the paper 3.8."""

SEQUENCE = 512
"""Tokens of a sequence (section 5.2)."""

DTYPE = "float16"
"""Of weights, activations and gradients: "mixed precision" (section 5, "Implementation")."""

FLOPS = 45e12
"""FLOP/s that one V100 attained on the 355M GPT (section 5, "Implementation")."""

WEIGHT_BYTES = 2
STATE_BYTES = 12
"""Bytes of a parameter in mixed precision with Adam, which the paper does not print: a weight
version and a gradient of 2 each, and a master copy and two moments of 4 each (Micikevicius et al.,
"Mixed Precision Training", ICLR 2018; Rajbhandari et al., "ZeRO", SC 2020, section 3.1).  So a
worker has 16 a parameter, and with 2BW's second version 18."""

OPTIMIZER_STATES = STATE_BYTES / WEIGHT_BYTES
"""The same as planners and simulator count it: in tensors of a parameter's size."""

MEGATRON_BYTES = 20
"""Of a parameter with float16 weights and gradients, as Megatron's own rule has them (Megatron-LM,
README, "Distributed Optimizer": 20 without one): 2 and 2, and in float32 the weight, the gradient
and Adam's two moments.  The authors adapted Megatron (section 5, "Implementation")."""


class Panel(NamedTuple):
    """A panel of Figure 6: which GPT on how many servers of 8 V100s each.

    ``depth`` counts stages of a pipeline, d, and ways of model parallelism (section 5.2); there are
    a small and a large global batch, in sequences.
    """

    model: str
    servers: int
    depth: int
    batches: tuple[int, int]


FIGURE6: Mapping[str, Panel] = MappingProxyType(
    {
        "a": Panel("2.2B", servers=1, depth=8, batches=(64, 256)),
        "b": Panel("2.2B", servers=8, depth=8, batches=(512, 2048)),
        "c": Panel("3.8B", servers=8, depth=16, batches=(512, 2048)),
    }
)
"""By letter.  The text prints panel c's caption, a batch of 2048 (section 5.2), of 64 on 8 GPUs
(section 5.3) and a tick of 256; that a GPU gets 8 or 32 sequences in every panel follows if the
three belong together.  Models and depths of a and b are section 5.2's.

The batch sizes differ in "numbers of microbatches over which gradients are averaged (m = d g)"
(section 5.2); taken to be without accumulation, g = 1, for the smaller one."""

FIGURE8 = ((4, 1), (8, 1), (8, 32))
"""(d, b) of the GPT with 1.3B on 64 GPUs.  Section 5.4 prints d = 4, d = 8 and b = 32; the smaller
microbatch is lost in the text, and 1 is the smallest there is."""
