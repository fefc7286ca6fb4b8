"""What the stages of a graph cost: any layers between two of its states."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipekit.planning.layer_ranges import Floats, Tables
from pipekit.planning.states import States
from pipekit.profiling import LayerProfile, Profile


def graph_tables(profile: Profile, states: States) -> Tables:
    """Return the costs of all layers within each state, and what passes between two states.

    Every value that crosses a cut counts once, however many layers read it behind the cut.  A
    stage receives the values that some of its layers read and an earlier stage made or was given.

    Where memory decides, a stage's layers are taken to run in the order that lets gradients raise
    the bytes least.

    Args:
        profile: a graph.
        states: its states, the cuts.
    """

    def total(cost: Callable[[LayerProfile], float]) -> Floats:
        found: Floats = states.members @ np.array([cost(layer) for layer in profile.layers], float)
        return found

    parameters = total(lambda layer: layer.parameter_bytes)
    saved = total(lambda layer: layer.saved_bytes)
    boundary, entering, unsaved = _passing(profile, states)
    boundary[0] = profile.input_bytes
    whole_input = np.zeros(len(states))
    whole_input[0] = profile.input_bytes
    return Tables(
        forward_s=total(lambda layer: layer.forward_s),
        backward_s=total(lambda layer: layer.backward_s),
        update_s=total(lambda layer: layer.update_s),
        parameter_bytes=parameters,
        buffer_bytes=total(lambda layer: layer.buffer_bytes),
        saved_bytes=saved,
        boundary_bytes=boundary,
        input_bytes=whole_input,
        popped=entering,
        unsaved_output=np.zeros(len(states)),
        unsaved_stashed=unsaved,
        lead=states.lowest_peaks(saved - parameters),
        possible=states.within,
    )


def _passing(profile: Profile, states: States) -> tuple[Floats, Floats, Floats]:
    """Return what passes each state; what enters each stage; what leaves it and is not saved.

    A stage from state a to state b reads a value that was there in a exactly if b holds more of its
    users than a.  For a value of n users that is a sum over t < n of two factors, "a holds t" and
    "b holds more than t", so that all stages are one product of matrices.
    """
    count = len(states)
    boundary = np.zeros(count)
    none = np.zeros(count)  # so that there is a factor if there is no value
    there_before: list[Any] = [none]
    read_within: list[Any] = [none]
    held_before: list[Any] = [none]
    left_behind: list[Any] = [none]
    for value in profile.values:
        if not value.users:
            continue
        made = _made(states, value.source)
        read = states.members[:, value.users].sum(axis=1)
        waiting = read < len(value.users)
        boundary += value.bytes * (made & waiting)
        for users in range(len(value.users)):
            there_before.append(value.bytes * (made & (read == users)))
            read_within.append(read > users)
        if not value.saved:
            # Whoever made it or passes it on holds it until it is backward.
            held_before += [value.bytes * ~made, *there_before[-len(value.users) :]]
            left_behind.append(made & waiting)
            left_behind += [more & waiting for more in read_within[-len(value.users) :]]
    entering = np.transpose(there_before) @ np.array(read_within, float)
    unsaved = np.transpose(held_before) @ np.array(left_behind, float)
    return boundary, entering, unsaved


def _made(states: States, source: int | None) -> NDArray[np.bool_]:
    """Return whether each state has a value; the input is there once anything has run."""
    if source is None:
        return np.arange(len(states)) > 0
    return states.members[:, source]
