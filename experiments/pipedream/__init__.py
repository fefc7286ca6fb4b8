"""What PipeDream's notebooks compute (Harlap et al., "PipeDream", 2018), where a cell is too short.

Minibatches, machines and stages count from 0 here, and from 1 in the paper.
"""

from collections.abc import Sequence

from pipekit.profiling import LayerProfile, Profile

STRAIGHT = [1, 1, 1, 1]
"""The replicas of four stages that have a machine each, as in Figures 3, 4 and 8."""

# Of several claims' misses, by the names that they share in the report.
TOO_FEW_IN_FLIGHT = "NOAM leaves no minibatch for the links"
LINK_TIME = "time on links"
NOMINAL = "the fitted bandwidth"
GUESSED_LAYERS = "S2VT's layers, which are ours, in the fit of Cluster-A's bandwidth"
OWN_BANDWIDTH = "one bandwidth for all networks of a cluster"
ACTIVATIONS = "the activations of S2VT's layers, which are ours"
PLAN = "our planner's choice"
TIMES = "the roofline's seconds"


def one_layer_stages(
    stage_s: Sequence[tuple[float, float]], output_bytes: float = 0.0, parameter_bytes: float = 0.0
) -> Profile:
    """Return a profile with one layer a stage, of so many seconds forward and backward."""
    layers = tuple(
        LayerProfile(f"stage {number}", forward, backward, output_bytes, parameter_bytes)
        for number, (forward, backward) in enumerate(stage_s)
    )
    return Profile(layers, input_bytes=output_bytes, provenance={"label": "exact"})
