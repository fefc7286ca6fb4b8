"""What runs of consecutive layers cost, and what a worker that holds one has to store."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipekit.profiling import Profile
from pipekit.units import BYTES, written

Floats = NDArray[np.float64]
Index = Any
"""A cut's number, or an array of them; ``first`` and ``stop`` broadcast against each other."""
SUMS = ("forward_s", "backward_s", "update_s", "parameter_bytes", "buffer_bytes", "saved_bytes")
"""The costs of a layer that add up over the layers of a stage."""
_sums_of = attrgetter(*SUMS)


@dataclass(frozen=True)
class CostTables:
    """What :class:`LayerRanges` looks up: costs of all that comes before a cut, and of pairs.

    The cuts of a chain are before each layer and behind the last; those of a graph are its states.

    Attributes:
        forward_s, backward_s, update_s, parameter_bytes, buffer_bytes, saved_bytes: of all layers
            before each cut.
        boundary_bytes: what passes each cut.
        input_bytes: what enters a stage that starts at a cut, whatever it holds.
        unsaved_output: what leaves a stage that ends at a cut, and no backward needs.
        possible: whether there are layers between two cuts, and they can be a stage.
        pairs: makes what else memory depends on.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    parameter_bytes: Floats
    buffer_bytes: Floats
    saved_bytes: Floats
    boundary_bytes: Floats
    input_bytes: Floats
    unsaved_output: Floats
    possible: NDArray[np.bool_]
    pairs: Callable[[], "PairTables"]


class PairTables(NamedTuple):
    """What a worker's memory depends on, by the first and the last cut of its stage.

    Attributes:
        popped: what enters beside ``input_bytes``.
        unsaved_stashed: what leaves beside ``unsaved_output``, and no backward needs.
        lead: the most that the saved bytes before a cut within the stage exceed the parameters.
    """

    popped: Floats
    unsaved_stashed: Floats
    lead: Floats


def chain_tables(profile: Profile) -> CostTables:
    """Return the tables of layers that run in the order of their numbers."""
    layers = profile.layers
    cuts = len(layers) + 1
    totals = np.zeros((cuts, len(SUMS)))
    np.cumsum(layer_costs(profile), axis=0, out=totals[1:])
    sums = dict(zip(SUMS, totals.T.copy(), strict=True))
    entering: Floats = np.array([profile.input_bytes, *(layer.output_bytes for layer in layers)])
    boundary = entering.copy()
    popped, unsaved_stashed = np.zeros((2, cuts, cuts))
    for skip in profile.skips:
        behind = slice(skip.source + 1, skip.destination + 1)
        boundary[behind] += skip.bytes
        popped[behind, skip.destination + 1 :] += skip.bytes
        if not skip.saved:
            unsaved_stashed[: skip.source + 1, behind] += skip.bytes
    return CostTables(
        **sums,
        boundary_bytes=boundary,
        input_bytes=entering,
        unsaved_output=np.array(
            [0.0, *(0.0 if layer.saves_output else layer.output_bytes for layer in layers)]
        ),
        possible=np.arange(cuts)[:, None] < np.arange(cuts),
        pairs=lambda: PairTables(
            popped, unsaved_stashed, _largest_within(sums["saved_bytes"] - sums["parameter_bytes"])
        ),
    )


class LayerRanges:
    """Costs of the layers between two cuts of a profile, for one microbatch.

    Every method takes numbers or arrays, so that one call gives the costs of all possible stages.
    In a chain, cut k is before layer k: ``first`` and ``stop`` are a stage's first layer and the
    layer after its last.

    Args:
        costs: a profile, whose layers run in the order of their numbers; or a graph's tables.

    Attributes:
        layers: the number of the last cut; in a chain, how many layers there are.
        boundary_bytes: what passes each cut: the model's input at the first, the main tensor and
            all skips that are under way there, and at the last what leaves the last layer.  A skip
            is so counted on links past which a pipeline sends it straight, as in PipeDream's
            optimizer.
        possible: ``[first, stop]``: whether there are layers between two cuts, and they can be a
            stage.
    """

    def __init__(self, costs: Profile | CostTables) -> None:
        tables = chain_tables(costs) if isinstance(costs, Profile) else costs
        self.layers = len(tables.forward_s) - 1
        self.boundary_bytes = tables.boundary_bytes
        self.possible = tables.possible
        self._compute = tables.forward_s + tables.backward_s + tables.update_s
        self._tables = tables

    @cached_property
    def _pairs(self) -> PairTables:
        return self._tables.pairs()  # only once asked for: without a limit memory does not matter

    @cached_property
    def every_compute_s(self) -> Floats:
        """Seconds of forward, backward and update by ``[first, stop]``; infinite if impossible."""
        return np.where(self.possible, self.compute_s(*self.every()), np.inf)

    @cached_property
    def every_parameter_bytes(self) -> Floats:
        """Bytes of the trained parameters by ``[first, stop]``, possible or not."""
        return self.parameter_bytes(*self.every())

    def compute_s(self, first: Index, stop: Index) -> Floats:
        """Return the sum of T_l: forward, backward, and the optimizer's step each minibatch."""
        return self._compute[stop] - self._compute[first]

    def forward_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the forward."""
        return self._tables.forward_s[stop] - self._tables.forward_s[first]

    def backward_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the backward."""
        return self._tables.backward_s[stop] - self._tables.backward_s[first]

    def update_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the optimizer's step."""
        return self._tables.update_s[stop] - self._tables.update_s[first]

    def parameter_bytes(self, first: Index, stop: Index) -> Floats:
        """Return bytes of the trained parameters."""
        return self._tables.parameter_bytes[stop] - self._tables.parameter_bytes[first]

    def first_gradient_bytes(self, first: Index, stop: Index) -> Floats:
        """Return how far gradients raise the bytes in the first backward of a batch.

        There they come layer by layer as activations go: before layer l goes backward, there are
        the gradients of the layers behind l, and of the activations only those up to l.  In later
        backwards of a batch all gradients are there from the start.
        """
        return (
            self._tables.parameter_bytes[stop]
            - self._tables.saved_bytes[stop]
            + self._pairs.lead[first, stop]
        )

    def worker_bytes(
        self,
        first: Index,
        stop: Index,
        *,
        versions: Index,
        optimizer_states: float,
        in_flight: Index,
        kept: Index,
        gradients: Floats,
    ) -> Floats:
        """Return the bytes on a worker that runs these layers as a stage, as a backward starts.

        They are weight versions, the optimizer's state, buffers, the stage's input for every
        microbatch ``in_flight``, what its layers save and its output for every microbatch of which
        more is ``kept``, and ``gradients`` (of all parameters, or :meth:`first_gradient_bytes`).
        Skips from other stages are part of the input, those to other stages of the output.
        """
        sent = self._tables.unsaved_output[stop] + self._pairs.unsaved_stashed[first, stop]
        made = self._tables.saved_bytes[stop] - self._tables.saved_bytes[first] + sent
        total: Floats = (
            (versions + optimizer_states) * self.parameter_bytes(first, stop)
            + (self._tables.buffer_bytes[stop] - self._tables.buffer_bytes[first])
            + in_flight * (self._tables.input_bytes[first] + self._pairs.popped[first, stop])
            + kept * made
            + gradients
        )
        return total

    def every(self) -> tuple[Index, Index]:
        """Return ``first`` and ``stop`` that broadcast to all pairs of cuts, possible or not."""
        numbers = np.arange(self.layers + 1)
        return numbers[:, None], numbers[None, :]


def layer_costs(profile: Profile) -> Floats:
    """Return what adds up over the layers of a stage: :data:`SUMS` of each layer."""
    return np.array([_sums_of(layer) for layer in profile.layers], float)


def _largest_within(values: Floats) -> Floats:
    """Return the largest of values i to j at ``[i, j]``, and 0 where j < i."""
    numbers = np.arange(len(values))
    inside = numbers[:, None] <= numbers
    largest = np.maximum.accumulate(np.where(inside, values, -np.inf), axis=1)
    return np.where(inside, largest, 0.0)


def bytes_text(size: float) -> str:
    """Return a size for a message: exact, rounded up, and readable."""
    return f"{int(np.ceil(size)):,} bytes ({written(size, BYTES)})"
