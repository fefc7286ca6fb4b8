"""GPipe's partitioner: stages of least variance of a static estimate (sections 3.1 and 3.2)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pipekit.planning import balance
from pipekit.profiling import LayerProfile, Profile

COST: Mapping[str, Callable[[LayerProfile], float]] = MappingProxyType(
    {
        "operations": lambda layer: layer.flops,
        "time": lambda layer: layer.forward_s + layer.backward_s,
    }
)
"""What a partition can be balanced by; the paper's is a static estimate."""


def least_variance(profile: Profile, stages: int, by: str = "operations") -> list[int]:
    """Return the layers of each stage; ``by`` is a key of :data:`COST`."""
    return balance([COST[by](layer) for layer in profile.layers], stages, by="variance")
