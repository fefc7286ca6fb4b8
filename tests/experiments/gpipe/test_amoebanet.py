"""AmoebaNets of any size from a few small ones, and the parameters of one that we do not have."""

import pytest
import torch

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


@pytest.mark.long
def test_compiled_it_keeps_its_convolutions_outputs_alone_in_two_bytes() -> None:
    model, numbers = amoebanet_d(3, 8, device="meta"), list[int]()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, __, output: numbers.append(output.numel()))
    with torch.device("meta"):
        model(torch.rand(8, 3, 224, 224))
    compiled, eager = amoebanet.compiled(1, 8), amoebanet.profile(1, 8, rows=8, pixels=224)
    assert sum(layer.saved_bytes for layer in compiled.layers) == 2 * sum(numbers)
    assert compiled.layers[3].output_bytes == eager.layers[3].output_bytes / 2
    assert compiled.parameter_bytes == eager.parameter_bytes
