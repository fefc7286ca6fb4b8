"""AmoebaNets of any size from a few small ones, and the parameters of one that we do not have."""

import pytest

from experiments.gpipe import amoebanet
from experiments.study.costs import estimated, images
from pipekit.clusters import V100
from pipekit.models import amoebanet_d


@pytest.mark.long
@pytest.mark.parametrize(("layers", "filters"), [(1, 8), (4, 40)])
def test_bytes_are_those_of_the_network_profiled_by_itself(layers: int, filters: int) -> None:
    def build(device: str) -> object:
        return amoebanet_d(3 * layers, filters, 10, device=device)

    whole = estimated(build, images(2, 32), V100)  # type: ignore[arg-type]
    ours = amoebanet.profile(layers, filters, rows=2, pixels=32, classes=10)
    for expected, found in zip(whole.layers, ours.layers, strict=True):
        for name in amoebanet.NUMBERS:
            assert getattr(found, name) == getattr(expected, name), (expected.name, name)
