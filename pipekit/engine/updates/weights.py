"""What updates need of a stage's weights, wherever these are."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from pipekit.engine.observers.observer import StageWeights
from pipekit.engine.updates.buckets import Bucket, Gradients
from pipekit.engine.updates.loss_scaler import LossScaler


class Saved(NamedTuple):
    """What an update has changed, as it was before.

    Attributes:
        restore: puts it back.
        bytes: of the copies.
    """

    restore: Callable[[], None]
    bytes: int


class Weights(StageWeights, Protocol):
    """The weights of a stage, as observers see them, and the sums of their gradients."""

    def buckets(self) -> list[Bucket]:
        """Return how the gradients travel between the workers of a stage."""

    def take(self, update: int, parameters: Iterable[int]) -> Gradients:
        """Return, and let go of, the sums of ``update``'s gradients of some trained parameters."""

    def gradients(self, update: int) -> Gradients:
        """Return, and let go of, the sum of ``update``'s gradients, one a trained parameter."""

    def update(self, slot: int, gradients: Gradients) -> None:
        """Write the next version into ``slot``: one optimizer step from the newest version."""

    def skip(self, slot: int) -> None:
        """Make ``slot`` the next version as a copy of the newest: no step is taken."""

    def save(self) -> Saved:
        """Copy what puts weights and optimizer back to how they are now, after one update."""

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with a trained parameter's number when a backward added a gradient.

        Returns:
            What ends it.
        """


class UpdatedStage(Protocol):
    """A stage whose weights are updated."""

    @property
    def weights(self) -> Weights:
        """Its weights."""

    @property
    def scaler(self) -> LossScaler | None:
        """The scale of the losses, if they are scaled."""

    @property
    def numbers(self) -> Sequence[int | None]:
        """Of its trained parameters in the unsplit model; None for a copy of an earlier stage's."""
