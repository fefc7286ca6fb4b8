from functools import partial

import pytest
import torch

from pipekit.models import PUBLISHED

# The smallest of a family stands for the larger ones, which run the same code for seconds.
FAMILIES = {"amoebanet-d": "18-208", "unet": "5-64", "gpt": "355M"}
LARGER = {
    name: f"{family}-{size}"
    for family, size in FAMILIES.items()
    for name in PUBLISHED
    if name.startswith(family) and not name.endswith(size)
}


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in LARGER])
def test_networks_take_their_samples(name: str) -> None:
    network = PUBLISHED[name]
    with torch.device("meta"):
        sample = network.sample(2)
    output = network.build(device="meta")(sample)
    assert output.is_meta
    assert output.shape[0] == 2


@pytest.mark.parametrize("name", LARGER)
def test_larger_ones_of_a_family_are_its_code_and_take_its_samples(name: str) -> None:
    larger, smallest = PUBLISHED[name], PUBLISHED[LARGER[name]]
    assert isinstance(larger.build, partial)
    assert isinstance(smallest.build, partial)
    assert larger.build.func is smallest.build.func
    assert larger.sample(1).shape == smallest.sample(1).shape
