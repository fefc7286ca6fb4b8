"""What a user changes in the model between calls, or within one, and in the loss within one."""

import warnings
from collections.abc import Iterable

from torch import nn

from pipekit.engine.config import Loss
from pipekit.engine.observers.reporter import BatchDone, OnBatch
from pipekit.layers.function_state import FunctionState
from pipekit.layers.python_state import Attribute, Attributes
from pipekit.partition.probe import Probe

_BETWEEN = "change it between calls (restart=False keeps the pipeline full)"


class UserChanges:
    """Looks for changes that the stages' copies of the model, or of the loss, do not see.

    Args:
        original: the user's layers.
    """

    def __init__(self, original: nn.Module) -> None:
        self._original = original
        self._attributes = Attributes(original.named_modules(remove_duplicate=False))
        self._set: set[tuple[nn.Module, str]] = set()  # by forwards
        self._left: list[Attribute] = []

    def taken(self) -> list[Attribute]:
        """Return changed numbers with a fraction, which stages can take over.

        Flags and whole numbers may say what a module has done to its weights, and stay.
        """
        changed = self._attributes.changed()
        self._left += [each for each in changed if not isinstance(each.value, float)]
        return self._unset(each for each in changed if isinstance(each.value, float))

    def warn(self, tried: Probe | None) -> None:
        """Warn of other changes; ``tried`` says what forwards change themselves."""
        if tried is not None:
            modules = list(self._original.modules())
            self._set |= {(modules[number], key) for number, key, _ in tried.set_attributes}
        left, self._left = self._unset(self._left), []
        if names := _names(each for each in left if each.is_read and not each.is_mode):
            warnings.warn(
                f"{names} of the model changed since the pipeline has copied it, and stages go on "
                f"with the value of before: only numbers with a fraction are taken over. Build "
                f"another pipeline, and load this one's state_dict() into it",
                stacklevel=2,
            )
        recorded = getattr(self._original, "origin", None)
        frozen = recorded.attributes.changed() if recorded else []
        blocks = {*self._original.modules()} if frozen else set()
        if names := _names(each for each in frozen if each.is_read and each.module not in blocks):
            warnings.warn(
                f"{names} of the model changed since pipekit.stages recorded it, and the layers go "
                f"on with the value of before: record it again, or let the forward take it as "
                f"an argument, which is then an entry of the batch",
                stacklevel=2,
            )

    def warn_within(self) -> None:
        """Warn of changes within a call, which stages take over at the next one."""
        changed = self._unset(self._attributes.changed(known=False))
        if names := _names(each for each in changed if isinstance(each.value, float)):
            warnings.warn(
                f"{names} of the model changed within a call of train(), and stages take it over "
                f"at the next call: {_BETWEEN}",
                stacklevel=2,
            )

    def _unset(self, attributes: Iterable[Attribute]) -> list[Attribute]:
        """Return those that no forward sets."""
        return [each for each in attributes if (each.module, each.key) not in self._set]


def _names(attributes: Iterable[Attribute]) -> str:
    return ", ".join(dict.fromkeys(f"{each.owner}.{each.key}".lstrip(".") for each in attributes))


def watched(on_batch: OnBatch, loss: Loss) -> OnBatch:
    """Return an ``on_batch`` that warns if it changes a loss of which workers have copies."""
    state = FunctionState(loss)

    def told(done: BatchDone) -> object:
        answer = on_batch(done)
        if names := ", ".join(state.changed()):
            warnings.warn(
                f"{names} of the loss changed within a call of train(), for all of which worker "
                f"processes have copies of the loss: {_BETWEEN}, or use transport='threads'",
                stacklevel=2,
            )
        return answer

    return told
