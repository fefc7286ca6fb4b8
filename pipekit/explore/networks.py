"""What explorers simulate: the papers' networks, and methods' schedules."""

from dataclasses import replace
from functools import cache, lru_cache
from typing import get_args

from pipekit.clusters import Device
from pipekit.explore.page.controls import choice
from pipekit.plans import Recompute
from pipekit.profiling import Profile
from pipekit.schedules import Schedule
from pipekit.schedules.methods.by_name import batches_of

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
RECOMPUTE = choice("recompute", get_args(Recompute))
ESTIMATES = "loading torch and estimating the network's costs, once"
REMEMBERED = 64  # schedules and runs that need not be made again when a control goes back


@cache
def estimated(model: str, device: Device) -> Profile:
    """Return what each layer of a model costs for a microbatch of one row (a second or two)."""
    import torch  # here, since it takes seconds, and one explorer needs none of it

    from pipekit.models import PUBLISHED

    published = PUBLISHED[model]
    with torch.device("meta"):
        row = published.sample(1)
    return Profile.analytic(published.build(device="meta"), row, device)


@lru_cache(REMEMBERED)
def made(name: str, replicas: tuple[int, ...], microbatches: int, batches: int) -> Schedule:
    """Return a method's schedule (:func:`.batches_of`)."""
    schedule = batches_of(name, replicas, microbatches, batches)
    # What repeats is written out: it is gone through a dozen times while a slider moves.
    return replace(schedule, head=tuple(map(tuple, schedule.workers)))
