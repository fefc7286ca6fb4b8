"""What PipeDream's notebooks compute (Harlap et al., "PipeDream", 2018), where a cell is too short.

Minibatches, machines and stages count from 0 here, and from 1 in the paper.
"""

from collections.abc import Sequence

from pipekit.profiling import LayerProfile, Profile

STRAIGHT = [1, 1, 1, 1]
"""The replicas of four stages that have a machine each, as in Figures 3, 4 and 8."""


def one_layer_stages(
    stage_s: Sequence[tuple[float, float]], output_bytes: float = 0.0, parameter_bytes: float = 0.0
) -> Profile:
    """Return a profile with one layer a stage, of so many seconds forward and backward."""
    layers = tuple(
        LayerProfile(f"stage {number}", forward, backward, output_bytes, parameter_bytes)
        for number, (forward, backward) in enumerate(stage_s)
    )
    return Profile(layers, input_bytes=output_bytes, provenance={"label": "exact"})
