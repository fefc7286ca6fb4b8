"""Makes a chain of the graph of a profile."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pipekit.profiling.layer_profile import renumbered
from pipekit.profiling.profile import Profile


def merged(profile: Profile) -> Profile:
    """Return a graph as a chain, for planners that would take too long on it.

    It is cut behind every layer whose output is all that the layers behind it read; what lies
    between two such cuts is one layer.  A chain comes back as it is.
    """
    if not profile.values:
        return profile
    return _chain(profile, [0, *_only_the_last_is_read(profile), len(profile)])


def _only_the_last_is_read(profile: Profile) -> list[int]:
    """Return the places where all that crosses was made by the layer before them."""
    alone = set(range(1, len(profile)))
    for value in profile.values:
        if value.users:
            made = 0 if value.source is None else value.source + 2
            alone.difference_update(range(made, value.users[-1] + 1))
    return sorted(alone)


def _chain(profile: Profile, cuts: Sequence[int]) -> Profile:
    layers = []
    for first, stop in pairwise(cuts):
        whole = profile.stage(first, stop)
        sent = [
            value
            for value in profile.values
            if value.source == stop - 1 and (value.users or stop == len(profile))
        ]
        output = sum(value.bytes for value in sent)
        saved = all(value.saved for value in sent)
        layers.append(replace(whole, output_bytes=output, saves_output=saved))
    number = [place for place, ends in enumerate(pairwise(cuts)) for _ in range(*ends)]
    ties = renumbered(profile.ties, number)
    return replace(profile, layers=tuple(layers), skips=(), values=(), relayed=False, ties=ties)
