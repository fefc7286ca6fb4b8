import pytest
import torch

from pipekit.models import PUBLISHED

# Larger ones of a family run the same code for seconds; `make long` builds them, too.
LARGER = {
    *(f"amoebanet-d-{size}" for size in ("18-256", "18-416", "18-544", "36-544", "72-512")),
    *("unet-11-128", "unet-24-128", "unet-24-160", "unet-48-160"),
    *("gpt-1.3B", "gpt-2.2B", "gpt-3.8B"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LARGER)) for n in PUBLISHED]
)
def test_networks_take_their_samples(name: str) -> None:
    network = PUBLISHED[name]
    with torch.device("meta"):
        sample = network.sample(2)
    output = network.build(device="meta")(sample)
    assert output.is_meta
    assert output.shape[0] == 2


def test_those_left_for_later_are_published_and_none_is_the_only_one_of_its_family() -> None:
    assert set(PUBLISHED) > LARGER
    families = {name.split("-")[0] for name in LARGER}
    assert families <= {name.split("-")[0] for name in set(PUBLISHED) - LARGER}
