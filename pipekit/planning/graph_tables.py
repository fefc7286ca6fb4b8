"""What the stages of a graph cost: any layers between two of its states."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.layer_ranges import SUMS, CostTables, Floats, PairTables, layer_costs
from pipekit.planning.states import States
from pipekit.profiling import Profile, ValueProfile


def graph_tables(profile: Profile, states: States) -> CostTables:
    """Return the costs of all layers within each state, and what passes between two states.

    Every value that crosses a cut counts once, however many layers read it behind the cut.  A
    stage receives the values that some of its layers read and an earlier stage made or was given.

    Where memory decides, a stage's layers are taken to run in the order that lets gradients raise
    the bytes least.

    Args:
        profile: a graph.
        states: its states, the cuts.
    """

    totals = states.members.astype(float) @ layer_costs(profile)
    sums = dict(zip(SUMS, totals.T.copy(), strict=True))
    boundary = _crossing(states, profile.values)
    boundary[0] = profile.input_bytes
    whole_input, leaving = np.zeros((2, len(states)))
    whole_input[0] = profile.input_bytes
    if profile.relayed:  # a stage receives all that crosses where it starts
        whole_input = boundary
        leaving = _crossing(states, [value for value in profile.values if not value.saved])

    @cache
    def pairs() -> PairTables:
        none = np.zeros((len(states), len(states)))
        height = sums["saved_bytes"] - sums["parameter_bytes"]
        entering, unsaved = (none, none) if profile.relayed else _between(profile, states)
        return PairTables(entering, unsaved, states.lowest_peaks(height))

    return CostTables(
        **sums,
        boundary_bytes=boundary,
        input_bytes=whole_input,
        unsaved_output=leaving,
        possible=states.within,
        pairs=pairs,
    )


def _crossing(states: States, values: Sequence[ValueProfile]) -> Floats:
    """Return the bytes that cross each state: of values made within it and read behind it."""
    made = _with_input(states)[:, [-1 if v.source is None else v.source for v in values]]
    readers = np.zeros((len(values), states.members.shape[1]))
    rows = np.repeat(np.arange(len(values)), [len(value.users) for value in values])
    readers[rows, [user for value in values for user in value.users]] = 1
    read = states.members.astype(float) @ readers.T
    waiting = read < readers.sum(axis=1)
    crossing: Floats = (made & waiting) @ np.array([value.bytes for value in values], float)
    return crossing


def _between(profile: Profile, states: States) -> tuple[Floats, Floats]:
    """Return what enters each stage, and what leaves it and is not saved.

    A stage from state a to state b reads a value that was there in a exactly if b holds more of its
    users than a.  For a value of n users that is a sum over t < n of two factors, "a holds t" and
    "b holds more than t", so that all stages are one product of matrices.
    """
    none = np.zeros(len(states))  # so that there is a factor if there is no value
    there_before: list[Any] = [none]
    read_within: list[Any] = [none]
    held_before: list[Any] = [none]
    left_behind: list[Any] = [none]
    there = _with_input(states)
    for value in profile.values:
        if not value.users:
            continue
        made = there[:, -1 if value.source is None else value.source]
        read = states.members[:, value.users].sum(axis=1)
        for users in range(len(value.users)):
            there_before.append(value.bytes * (made & (read == users)))
            read_within.append(read > users)
        if not value.saved:
            # Whoever made it or passes it on holds it until it is backward.
            waiting = read < len(value.users)
            held_before += [value.bytes * ~made, *there_before[-len(value.users) :]]
            left_behind.append(made & waiting)
            left_behind += [more & waiting for more in read_within[-len(value.users) :]]
    entering = np.transpose(there_before) @ np.array(read_within, float)
    unsaved = np.transpose(held_before) @ np.array(left_behind, float)
    return entering, unsaved


def _with_input(states: States) -> NDArray[np.bool_]:
    """Return whether each state has what each layer made; the last column is the model's input.

    That is there once anything has run.
    """
    anything = np.arange(len(states)) > 0
    return np.column_stack([states.members, anything])
