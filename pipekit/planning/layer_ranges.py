"""What runs of consecutive layers cost, and what a worker that holds one has to store."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipekit.profiling.profile import LayerProfile, Profile

Floats = NDArray[np.float64]
Index = Any
"""A layer number, or an array of them; ``first`` and ``stop`` broadcast against each other."""


class LayerRanges:
    """Costs of layers ``first`` to ``stop - 1`` of a profile, for one microbatch.

    Every method takes numbers or arrays, so that one call gives the costs of all possible stages.

    Attributes:
        layers: how many there are.
        boundary_bytes: what passes into each layer from those before it, and at the end what leaves
            the last: the main tensor and all skips that are under way there.  A pipeline sends a
            skip straight past the stages between its ends, so that it is counted on links which it
            does not use; the bytes are exact where they cross a level of links, or between two
            stages.  PipeDream's optimizer, whose pipeline hands everything from stage to stage,
            counts so too.
    """

    def __init__(self, profile: Profile) -> None:
        layers = profile.layers
        self.layers = len(layers)
        self._forward = _cumulative(layers, lambda layer: layer.forward_s)
        self._backward = _cumulative(layers, lambda layer: layer.backward_s)
        self._update = _cumulative(layers, lambda layer: layer.update_s)
        self._parameters = _cumulative(layers, lambda layer: layer.parameter_bytes)
        self._buffers = _cumulative(layers, lambda layer: layer.buffer_bytes)
        self._saved = _cumulative(layers, lambda layer: layer.saved_bytes)
        self._input: Floats = np.array(
            [profile.input_bytes, *(layer.output_bytes for layer in layers)]
        )
        self.boundary_bytes = self._input.copy()
        self._popped, self._unsaved_stashed = np.zeros((2, self.layers + 1, self.layers + 1))
        for skip in profile.skips:
            behind = slice(skip.source + 1, skip.destination + 1)
            self.boundary_bytes[behind] += skip.bytes
            self._popped[behind, skip.destination + 1 :] += skip.bytes
            if not skip.saved:
                self._unsaved_stashed[: skip.source + 1, behind] += skip.bytes
        self._unsaved_output = np.array(
            [0.0, *(0.0 if layer.saves_output else layer.output_bytes for layer in layers)]
        )
        self._lead = _largest_within(self._saved - self._parameters)

    def forward_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the forward."""
        return self._forward[stop] - self._forward[first]

    def backward_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the backward."""
        return self._backward[stop] - self._backward[first]

    def update_s(self, first: Index, stop: Index) -> Floats:
        """Return seconds of the optimizer's step."""
        return self._update[stop] - self._update[first]

    def parameter_bytes(self, first: Index, stop: Index) -> Floats:
        """Return bytes of the trained parameters."""
        return self._parameters[stop] - self._parameters[first]

    def first_gradient_bytes(self, first: Index, stop: Index) -> Floats:
        """Return how far gradients raise the bytes in the first backward of a batch.

        There they come layer by layer as activations go: before layer l goes backward, there are
        the gradients of the layers behind l, and of the activations only those up to l.  In later
        backwards of a batch all gradients are there from the start.
        """
        return self._parameters[stop] - self._saved[stop] + self._lead[first, stop]

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
        microbatch in flight, what its layers save and its output for every microbatch that is not
        to be recomputed, or is just now, and gradients.  Skips from other stages are part of the
        input, those to other stages of the output.

        Args:
            first: its first layer.
            stop: the layer after its last.
            versions: of the weights.
            optimizer_states: tensors of a parameter's size that the optimizer keeps for each.
            in_flight: microbatches that have been forward and not yet backward.
            kept: those of which more than the input is there.
            gradients: bytes of them: of all parameters, or :meth:`first_gradient_bytes`.
        """
        sent = self._unsaved_output[stop] + self._unsaved_stashed[first, stop]
        made = self._saved[stop] - self._saved[first] + sent
        total: Floats = (
            (versions + optimizer_states) * self.parameter_bytes(first, stop)
            + (self._buffers[stop] - self._buffers[first])
            + in_flight * (self._input[first] + self._popped[first, stop])
            + kept * made
            + gradients
        )
        return total

    def every(self) -> tuple[Index, Index]:
        """Return ``first`` and ``stop`` that broadcast to all pairs, also the empty ones."""
        numbers = np.arange(self.layers + 1)
        return numbers[:, None], numbers[None, :]


def _cumulative(layers: tuple[LayerProfile, ...], cost: Callable[[LayerProfile], float]) -> Floats:
    return np.concatenate([[0.0], np.cumsum([cost(layer) for layer in layers])])


def _largest_within(values: Floats) -> Floats:
    """Return the largest of values i to j at ``[i, j]``, and 0 where j < i."""
    table = np.zeros((len(values), len(values)))
    for i in range(len(values)):
        table[i, i:] = np.maximum.accumulate(values[i:])
    return table


def bytes_text(size: float) -> str:
    """Return a size for a message: exact, rounded up, and readable."""
    return f"{int(np.ceil(size)):,} bytes ({size / 2**30:.3g} GiB)"
