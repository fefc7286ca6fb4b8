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

DISTINCT = 3
"""Normal cells of a group that may differ from those before them."""

NUMBERS = ("output_bytes", "parameter_bytes", "saved_bytes", "buffer_bytes", "flops")

STEM = 3
"""Layers before the first normal cell: a convolution and two reduction cells."""


def profile(layers: int, filters: int, rows: int, pixels: int, classes: int = 1000) -> Profile:
    """Return the bytes of AmoebaNet-D (L, F) in float32, with the unit of time as seconds.

    Memory depends on the order of a worker's tasks, which the schedule gives, and not on times: a
    forward takes 1 s here and a backward 2 s.

    Raises:
        ValueError: there is no such network.
    """
    distinct = min(layers, DISTINCT)
    known = [_profiled(distinct, f, rows, pixels, classes) for f in (8, 16, 24)]
    mixed = [_at(filters, same) for same in zip(*(one.layers for one in known), strict=True)]
    period = distinct + 1  # a group, and the reduction cell or classifier behind it
    chain = mixed[:STEM]
    for first in range(STEM, len(mixed), period):
        *cells, behind = mixed[first : first + period]
        chain += [*cells, *[cells[-1]] * (layers - len(cells)), behind]
    return replace(known[0], layers=tuple(chain))


@cache
def _profiled(layers: int, filters: int, rows: int, pixels: int, classes: int) -> Profile:
    build = partial(amoebanet_d, 3 * layers, filters, classes)
    return estimated(build, images(rows, pixels), V100)


def _at(filters: int, same: tuple[LayerProfile, ...]) -> LayerProfile:
    """Return a layer with F filters, from the same layer with 8, 16 and 24."""
    f = filters / 8
    lagrange = (f - 2) * (f - 3) / 2, (f - 1) * (3 - f), (f - 1) * (f - 2) / 2
    numbers = {name: [getattr(one, name) for one in same] for name in NUMBERS}
    sums = {
        name: float(round(sum(w * value for w, value in zip(lagrange, values, strict=True))))
        for name, values in numbers.items()
    }
    name, saves = same[0].name, same[0].saves_output
    return LayerProfile(name, forward_s=1, backward_s=2, saves_output=saves, **sums)
