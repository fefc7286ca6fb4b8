"""The papers' networks and what they cost, estimated once each."""

from functools import cache

from pipekit.clusters import Device
from pipekit.profiling import Profile

MODELS = (
    "vgg16",
    "resnet50",
    "amoebanet-d-18-256",
    "unet-5-64",
    "bert-large",
    "gpt-355M",
    "gpt-1.3B",
    "gpt-2.2B",
)
"""Some of :data:`pipekit.models.PUBLISHED`."""
ESTIMATES = "loading torch and estimating the network's costs, once"
"""What the first look at a network takes time for."""


@cache
def estimated(model: str, device: Device) -> Profile:
    """Return what each layer of a model costs for a microbatch of one row (a second or two)."""
    import torch  # here, since it takes seconds, and one explorer needs none of it

    from pipekit.models import PUBLISHED

    published = PUBLISHED[model]
    with torch.device("meta"):
        row = published.sample(1)
    return Profile.analytic(published.build(device="meta"), row, device)
