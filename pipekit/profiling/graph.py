"""Makes the graph of a profile smaller: a chain, or one with straight branches of one layer."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from pipekit.profiling.layer_profile import ValueProfile, renumbered
from pipekit.profiling.profile import Profile

What = Literal["all", "branches"]


def merged(profile: Profile, what: What = "all") -> Profile:
    """Return a graph with fewer layers, for planners that would take too long on it.

    Args:
        profile: a graph; a chain comes back as it is.
        what: "all": a chain, cut behind every layer whose output is all that the layers behind it
            read; what lies between two such cuts is one layer.
            "branches": a graph that can be cut wherever that chain can, and in which layers of a
            branch that only hand on to one another are one layer.

    Raises:
        ValueError: ``what`` is neither.
    """
    if what not in ("all", "branches"):
        raise ValueError(f"what must be 'all' or 'branches', not {what!r}")
    if not profile.values:
        return profile
    cuts = [0, *_only_the_last_is_read(profile), len(profile)]
    return _chain(profile, cuts) if what == "all" else _short_branches(profile, cuts)


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


def _short_branches(profile: Profile, cuts: Sequence[int]) -> Profile:
    """Return the graph with each straight run within a branch as one layer, where its last was."""
    readers: list[set[int]] = [set() for _ in profile.layers]
    sources: list[set[int | None]] = [set() for _ in profile.layers]
    for value in profile.values:
        for user in value.users:
            sources[user].add(value.source)
            if value.source is not None:
                readers[value.source].add(user)
    runs: dict[int, list[int]] = {}
    run_of: list[int] = []
    for layer in range(len(profile)):
        before = next(iter(sources[layer])) if len(sources[layer]) == 1 else None
        if before is None or readers[before] != {layer} or before + 1 in cuts:
            runs[layer] = [layer]
            run_of.append(layer)
        else:
            run_of.append(run_of[before])
            runs[run_of[layer]].append(layer)
    in_order = sorted(runs.values(), key=lambda run: run[-1])
    number = {run[0]: place for place, run in enumerate(in_order)}
    layers = []
    for run in in_order:
        in_turn = Profile(tuple(profile.layers[layer] for layer in run))
        layers.append(in_turn.stage(0, len(run)))
    values = [
        ValueProfile(
            None if value.source is None else number[run_of[value.source]],
            tuple(number[run_of[user]] for user in value.users),
            value.bytes,
            value.saved,
        )
        for value in profile.values
        if value.source is None or _leaves(value, runs[run_of[value.source]])
    ]
    ties = renumbered(profile.ties, [number[run] for run in run_of])
    return replace(profile, layers=tuple(layers), skips=(), values=tuple(values), ties=ties)


def _leaves(value: ValueProfile, run: Sequence[int]) -> bool:
    """Return whether a run's value is read behind it, or is what its last layer ends with."""
    return not set(value.users) <= set(run) if value.users else value.source == run[-1]
