"""What the layers between two cuts cost, and what a worker that holds them has to store."""

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

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


class PairBytes(NamedTuple):
    """Bytes that depend on both cuts of a stage: ``[first, stop]`` each."""

    entering: Floats  # beside what enters every stage that starts at ``first``
    leaving: Floats  # beside what leaves every stage up to ``stop``, and no backward needs
    lead: Floats  # the most that the saved bytes before a cut within it exceed the parameters


class LayerRanges:
    """Costs of the layers between two cuts of a chain, for one microbatch.

    Cut k is before layer k, ``layers`` the number of the last cut.  ``boundary_bytes`` pass each
    cut: the model's input, or the main tensor and all skips that are under way there, as in
    PipeDream's optimizer.  ``possible`` says by ``[first, stop]`` whether the layers between two
    cuts can be a stage.
    """

    boundary_bytes: Floats
    possible: NDArray[np.bool_]
    _input_bytes: Floats  # what enters a stage that starts at a cut, whatever it holds
    _unsaved_output: Floats  # what leaves a stage that stops at a cut, and no backward needs

    def __init__(self, profile: Profile) -> None:
        totals = np.zeros((len(profile) + 1, len(SUMS)))
        np.cumsum(layer_costs(profile), axis=0, out=totals[1:])
        self._set_totals(profile, totals)
        layers = profile.layers
        self._input_bytes = np.array([profile.input_bytes, *(x.output_bytes for x in layers)])
        self._unsaved_output = np.array(
            [0.0, *(x.output_bytes * (not x.saves_output) for x in layers)]
        )
        self.boundary_bytes = self._input_bytes.copy()
        for skip in profile.skips:
            self.boundary_bytes[skip.source + 1 : skip.destination + 1] += skip.bytes
        self.possible = np.triu(np.ones((len(totals), len(totals)), bool), 1)

    def _set_totals(self, profile: Profile, totals: Floats) -> None:
        """Set the sums of all layers before each cut, ``[cuts, SUMS]``."""
        self._profile = profile
        self.layers = len(totals) - 1
        self._totals = dict(zip(SUMS, totals.T.copy(), strict=True))
        self._totals["compute_s"] = sum(self._totals[name] for name in SUMS[:3])

    def layers_between(self, first: int, stop: int) -> Sequence[int]:
        """Return the layers between two cuts, as they stand in the profile."""
        return range(first, stop)

    @cached_property
    def pairs(self) -> PairBytes:
        """Made once it is asked for: without a limit memory does not matter."""
        entering, leaving = np.zeros((2, self.layers + 1, self.layers + 1))
        for skip in self._profile.skips:
            behind = slice(skip.source + 1, skip.destination + 1)
            entering[behind, skip.destination + 1 :] += skip.bytes
            if not skip.saved:
                leaving[: skip.source + 1, behind] += skip.bytes
        first, stop = self.every()
        lead = np.where(
            first <= stop, self._totals["saved_bytes"] - self._totals["parameter_bytes"], -np.inf
        )
        return PairBytes(
            entering, leaving, np.where(first <= stop, np.maximum.accumulate(lead, axis=1), 0.0)
        )

    def total(self, name: str, first: Index, stop: Index) -> Floats:
        """Return one of :data:`SUMS`, or "compute_s": T_l with the optimizer's step."""
        total: Floats = self._totals[name][stop] - self._totals[name][first]
        return total

    def first_gradient_bytes(self, first: Index, stop: Index) -> Floats:
        """Return by how much gradients raise the bytes: they come as activations go."""
        parameters, saved = self._totals["parameter_bytes"], self._totals["saved_bytes"]
        rise: Floats = parameters[stop] - saved[stop] + self.pairs.lead[first, stop]
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
        sent = self._unsaved_output[stop] + self.pairs.leaving[first, stop]
        kept = in_flight if kept is None else kept
        total: Floats = (
            tensors * parameters
            + self.total("buffer_bytes", first, stop)
            + in_flight * (self._input_bytes[first] + self.pairs.entering[first, stop])
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


def layer_costs(profile: Profile) -> Floats:
    """Return :data:`SUMS` of each layer."""
    return np.array([attrgetter(*SUMS)(layer) for layer in profile.layers], float)


def exact_bytes(size: float) -> str:
    """Return a size for a message: exact, rounded up, and readable."""
    return f"{int(np.ceil(size)):,} bytes ({bytes_text(size)})"


def milliseconds(seconds: float) -> str:
    """Return a time for a message."""
    return f"{seconds * 1e3:.4g} ms"
