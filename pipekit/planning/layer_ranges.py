"""What the layers between two cuts cost, and what a worker that holds them has to store."""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipekit.plans import Recompute, StagePlan
from pipekit.profiling import Profile
from pipekit.units import bytes_text

Floats = NDArray[np.float64]
Index = Any
"""A cut's number, or an array of them; ``first`` and ``stop`` broadcast against each other."""
SUMS = ("forward_s", "backward_s", "update_s", "parameter_bytes", "buffer_bytes", "saved_bytes")
"""The costs of a layer that add up over the layers of a stage."""


class LayerRanges:
    """Costs of the layers between two cuts, for one microbatch.

    Cut k is before layer k; ``layers`` is the number of the last cut.  ``boundary_bytes`` pass each
    cut: the model's input, or the output before it with the skips under way.  ``possible`` says by
    ``[first, stop]`` whether there are layers between two cuts.
    """

    def __init__(self, profile: Profile) -> None:
        costs = np.array([attrgetter(*SUMS)(layer) for layer in profile.layers], float)
        self.layers, self._skips = len(costs), profile.skips
        self.possible = np.less(*self.every())
        # What enters a stage that starts at a cut, whatever it holds; and what leaves one that
        # stops there, and no backward needs.
        sent = [(each.output_bytes, not each.saves_output) for each in profile.layers]
        self._input_bytes = np.array([profile.input_bytes, *(size for size, _ in sent)], float)
        self._unsaved_output = np.array([0.0, *(size * unsaved for size, unsaved in sent)])
        self.boundary_bytes = self._input_bytes.copy()
        for skip in self._skips:
            self.boundary_bytes[skip.source + 1 : skip.destination + 1] += skip.bytes
        totals = np.zeros((self.layers + 1, len(SUMS)))
        np.cumsum(costs, axis=0, out=totals[1:])
        self._totals = dict(zip(SUMS, totals.T.copy(), strict=True))
        self._totals["compute_s"] = totals[:, :3].sum(axis=1)  # of both passes and the update

    @cached_property
    def _pairs(self) -> tuple[Floats, Floats, Floats]:
        """Bytes that depend on both cuts of a stage: ``[first, stop]`` each.

        What enters and what leaves it by skips, beside the input and the output; and the most that
        the saved bytes before a cut within it exceed the parameters.  Made once it is asked for:
        without a limit memory does not matter.
        """
        first, stop = self.every()
        entering, leaving = np.zeros((2, self.layers + 1, self.layers + 1))
        for skip in self._skips:
            made, popped = first > skip.source, stop > skip.destination
            entering += skip.bytes * (made & popped & (first <= skip.destination))
            if not skip.saved:
                leaving += skip.bytes * (~made & (stop > skip.source) & ~popped)
        height = self._totals["saved_bytes"] - self._totals["parameter_bytes"]
        lead = np.maximum.accumulate(np.where(first <= stop, height, -np.inf), axis=1)
        return entering, leaving, np.where(first <= stop, lead, 0.0)

    def total(self, name: str, first: Index, stop: Index) -> Floats:
        """Return one of :data:`SUMS`, or "compute_s": T_l with the optimizer's step."""
        total: Floats = self._totals[name][stop] - self._totals[name][first]
        return total

    def first_gradient_bytes(self, first: Index, stop: Index) -> Floats:
        """Return by how much gradients raise the bytes: they come as activations go."""
        parameters, saved = self._totals["parameter_bytes"], self._totals["saved_bytes"]
        _, _, lead = self._pairs
        rise: Floats = parameters[stop] - saved[stop] + lead[first, stop]
        return rise

    def worker_bytes(
        self,
        first: Index,
        stop: Index,
        tensors: Index,
        in_flight: Index,
        kept: Index | None = None,
        gradients: Floats | None = None,
    ) -> Floats:
        """Return the bytes on a worker that runs these layers as a stage, as a backward starts.

        ``tensors`` of the parameters' size are weight versions and the optimizer's state.  Of every
        microbatch ``in_flight`` there is the stage's input, with skips from other stages; of those
        ``kept``, by default all, also what layers save, and the output.  ``gradients`` are by
        default as large as the parameters.
        """
        parameters = self.total("parameter_bytes", first, stop)
        entering, leaving, _ = self._pairs
        sent = self._unsaved_output[stop] + leaving[first, stop]
        kept = in_flight if kept is None else kept
        total: Floats = (
            tensors * parameters
            + self.total("buffer_bytes", first, stop)
            + in_flight * (self._input_bytes[first] + entering[first, stop])
            + kept * (self.total("saved_bytes", first, stop) + sent)
            + (parameters if gradients is None else gradients)
        )
        return total

    def every(self) -> tuple[Index, Index]:
        """Return ``first`` and ``stop`` that broadcast to all pairs of cuts, possible or not."""
        numbers = np.arange(self.layers + 1)
        return numbers[:, None], numbers[None, :]


def stage_plans(
    balance: Sequence[int],
    seconds: Floats,
    memory: Floats,
    replicas: int = 1,
    recompute: Recompute = "never",
) -> tuple[StagePlan, ...]:
    """Return stages of so many layers each, which take so long and so many bytes of a worker."""
    stops = np.cumsum(balance)
    each = zip(stops - balance, stops, seconds, memory, strict=True)
    return tuple(
        StagePlan(int(a), int(b), replicas, recompute, float(s), float(m)) for a, b, s, m in each
    )


def exact_bytes(size: float) -> str:
    """Return a size for a message: exact, rounded up, and readable."""
    return f"{int(np.ceil(size)):,} bytes ({bytes_text(size)})"


def milliseconds(seconds: float) -> str:
    """Return a time for a message."""
    return f"{seconds * 1e3:.4g} ms"
