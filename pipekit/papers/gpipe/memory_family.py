"""Profiles of AmoebaNet-D of any size (L, F), from three small ones.

A profile of a network with thousands of operators takes seconds, and a search looks at hundreds of
networks.  But every number of bytes in AmoebaNet-D is a polynomial of F of degree 2 at most, since
a tensor has F channels times a constant and a weight has F^2 numbers, F or none; and from the third
on, the normal cells of a group are equal.
"""

from dataclasses import replace
from functools import cache, partial

from pipekit.clusters import V100
from pipekit.models import amoebanet_d
from pipekit.papers.costs import estimated, images
from pipekit.profiling import LayerProfile, Profile

KNOTS = (8, 16, 24)
"""Filters of the networks that are profiled."""

DISTINCT = 3
"""Normal cells of a group that may differ from those before them."""

NUMBERS = ("output_bytes", "parameter_bytes", "saved_bytes", "buffer_bytes", "flops")

STEM = 3
"""Layers before the first normal cell: a convolution and two reduction cells."""


def profile(layers: int, filters: int, rows: int, pixels: int, classes: int = 1000) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) in float32, with the unit of time as seconds.

    Memory depends on the order of a worker's tasks, which the schedule gives, and not on times: a
    forward takes 1 s here and a backward 2 s.

    Args:
        layers: L as GPipe counts it, normal cells of a group; there are three groups.
        filters: F, a multiple of 8.
        rows: of a microbatch.
        pixels: of an image's side.
        classes: number of classes.

    Raises:
        ValueError: there is no such network.
    """
    known = [_profiled(min(layers, DISTINCT), knot, rows, pixels, classes) for knot in KNOTS]
    weights = _lagrange(filters)
    mixed = [_mixed(same, weights) for same in zip(*(one.layers for one in known), strict=True)]
    period = min(layers, DISTINCT) + 1  # a group, and the reduction cell or classifier behind it
    chain = mixed[:STEM]
    for first in range(STEM, len(mixed), period):
        *cells, behind = mixed[first : first + period]
        chain += [*cells, *[cells[-1]] * (layers - len(cells)), behind]
    return replace(known[0], layers=tuple(chain))


@cache
def _profiled(layers: int, filters: int, rows: int, pixels: int, classes: int) -> Profile:
    build = partial(amoebanet_d, 3 * layers, filters, classes)
    return estimated(build, images(rows, pixels), V100)


def _lagrange(x: float) -> list[float]:
    """Return the weights of the knots' values in the polynomial through them, at ``x``."""
    weights = []
    for knot in KNOTS:
        weight = 1.0
        for other in KNOTS:
            if other != knot:
                weight *= (x - other) / (knot - other)
        weights.append(weight)
    return weights


def _mixed(same: tuple[LayerProfile, ...], weights: list[float]) -> LayerProfile:
    """Return a layer whose bytes are the weighted sum of the same layer's in several networks."""
    sums = {
        name: float(
            round(sum(w * getattr(one, name) for w, one in zip(weights, same, strict=True)))
        )
        for name in NUMBERS
    }
    return LayerProfile(
        same[0].name, forward_s=1, backward_s=2, saves_output=same[0].saves_output, **sums
    )
