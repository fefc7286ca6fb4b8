"""What PipeDream's notebooks compute (Harlap et al., "PipeDream", 2018), where a cell is too short.

Minibatches, machines and stages count from 0 here, and from 1 in the paper.
"""

from collections.abc import Sequence

from pipekit.profiling import LayerProfile, Profile

ROWS = {"alexnet": 32, "vgg16": 32, "s2vt": 80, "resnet50": 32, "inception-v3": 32}
"""Rows of a machine's minibatch by model (section 5.1).  The paper prints none for AlexNet and
ResNet-50, which get what the other image networks have."""

LR = 0.01  # of VGG16 and S2VT, at first

IMAGES, WORDS = 1_300_000, 12_594  # training images of ILSVRC12; words of MSVD's captions

STRAIGHT = [1, 1, 1, 1]
"""The replicas of four stages that have a machine each, as in Figures 3, 4 and 8."""

# Causes of misses, by the names that claims share in the report, and what is done instead.
TOO_FEW_IN_FLIGHT = "NOAM leaves no minibatch for the links", "twice as many minibatches in flight"
LINK_TIME = "time on links", "links that take no time"
OVERLAP = "gradients leave during the backward", "they leave after it"
LATE_SUMS = (
    "replicas wait for their round's sum",
    "they read the newest weights that have arrived (section 4), a round late",
)
DUPLEX = "links of full duplex", "both directions share a link (section 3.2)"
SHARDS = "sums in equal shards, whose bytes saturate", "at one server, fitted so"
NOMINAL = "the fitted bandwidth", "the printed bandwidth"
KNOWN_LAYERS = "a fit without S2VT, whose layers are ours", "fitted on S2VT's BSP speedup, too"
OWN_BANDWIDTH = "one bandwidth for all networks of a cluster", "fitted on the row's own BSP speedup"
EMBEDDINGS = "S2VT's embeddings", "frames and words enter the LSTMs as they are"
PLAN = "the printed configuration", "our planner's choice"
PLANNED_FOR = "plans for the printed bandwidth", "for the fitted one"
COST = "section 3.2's cost, as printed", "the released optimizer's"
TIMES = "seconds as others published them", "the roofline's"

Change = tuple[str, str]


def one_layer_stages(stage_s: Sequence[tuple[float, float]], output_bytes: float = 0.0) -> Profile:
    layers = tuple(
        LayerProfile(f"stage {number}", forward, backward, output_bytes)
        for number, (forward, backward) in enumerate(stage_s)
    )
    return Profile(layers, input_bytes=output_bytes, provenance={"label": "exact"})
