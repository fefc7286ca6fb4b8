"""The user's own model and loss beside a pipeline's copies: changes are taken over, or noticed."""

import warnings
from collections.abc import Callable, Iterable

import torch
from torch import nn

from pipekit.engine.config import Loss
from pipekit.engine.observers.reporter import BatchDone, OnBatch
from pipekit.layers.python_state import Attribute, Attributes
from pipekit.layers.user_functions import FunctionState
from pipekit.partition.probe import Probe
from pipekit.partition.recording.recorded_model import RecordedModel

_BETWEEN = "change it between calls"


class UsersWeights:
    """The parameters of the user's model, edits of which have no effect, and are noticed.

    The pipeline trains copies of those that are ``trained``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._before = model, _looks(model)
        self._own = dict(model.named_parameters(remove_duplicate=False))
        self.trained = {weight for weight in model.parameters() if weight.requires_grad}

    def choose(self, names: Iterable[str], trained: bool) -> None:
        """Let the pipeline train, or not, what has these names, or is in modules with them.

        Raises:
            ValueError: the model has no such name; nothing is changed then.
        """
        state, own = self._model.state_dict(keep_vars=True), {*self._own.values()}
        known = {n: e for n, e in state.items() if isinstance(e, nn.Parameter) and e in own}
        chosen = set[nn.Parameter]()
        for name in names:
            found = {e for n, e in known.items() if f"{n}.".startswith(f"{name}.")}
            if not found:
                raise ValueError(
                    f"the model has no parameter {name!r}, nor a module with parameters of that "
                    f"name: its names are those of state_dict(), {next(iter(known), '')!r} say"
                )
            chosen |= found
        self.trained = self.trained | chosen if trained else self.trained - chosen

    def mark(self, copy: nn.Module) -> None:
        """Let the parameters of a copy, or of a part of one, be trained, or not, as chosen."""
        for name, weight in copy.named_parameters(remove_duplicate=False):
            weight.requires_grad_(self._own[name] in self.trained)

    def compare(self, copies: Callable[[], Iterable[nn.Module]]) -> None:
        """Warn, once for each change, of what the pipeline's copies do not have."""
        now, before, own = _looks(self._model), self._before, self._own
        if now == before:
            return
        self._before = now
        changed = [
            f"{name}.requires_grad"
            for name, (flag, *_) in now.items()
            if name in before
            and flag != before[name][0]
            and flag != (own.get(name) in self.trained)
        ]
        kept = {n: weight for each in copies() for n, weight in each.named_parameters()}
        changed += [
            name
            for name, weight in self._model.named_parameters()
            if name in kept
            and now[name][1:] != before.get(name, ())[1:]
            and not torch.equal(weight.to(kept[name].device), kept[name])
        ]
        if changed:
            warnings.warn(
                f"the model has changed since Pipeline(model) copied it, {changed[0]} say, and the "
                f"copy has not: build the pipeline afterwards, or tell it by its load_state_dict() "
                f"or requires_grad_()",
                stacklevel=7,
            )


def _looks(model: nn.Module) -> dict[str, tuple[bool, int, int]]:
    """Return whether each weight is trained, and numbers that an edit or another tensor changes."""
    return {
        name: (each.requires_grad, id(each), 0 if each.is_inference() else each._version)
        for name, each in model.named_parameters(remove_duplicate=False)
    }


class UsersAttributes:
    """The attributes of the user's layers, whose changes the stages' copies do not see."""

    def __init__(self, original: nn.Module) -> None:
        self._original = original
        self._attributes = Attributes(original.named_modules(remove_duplicate=False))
        self._set: set[tuple[nn.Module, str]] = set()  # by forwards
        self._left: list[Attribute] = []

    def taken(self) -> list[Attribute]:
        """Return changed numbers with a fraction, which stages can take over.

        Flags and whole numbers may say what a module has done to its weights, and stay.
        """
        taken = []
        for each in self._attributes.changed():
            if not isinstance(each.value, float):
                self._left.append(each)
            elif (each.module, each.key) not in self._set:
                taken.append(each)
        return taken

    def warn(self, tried: Probe | None) -> None:
        """Warn of other changes; ``tried`` says what forwards change themselves."""
        if tried is not None and tried.set_attributes:
            modules = list(self._original.modules())
            self._set |= {(modules[number], key) for number, key, _ in tried.set_attributes}
        if self._left:
            left, self._left = self._unset(self._left), []
            _warn(
                (each for each in left if each.is_read and not each.is_mode),
                "of the model changed since the pipeline has copied it, and stages go on with the "
                "value of before: only numbers with a fraction are taken over. Build another "
                "pipeline, and load this one's state_dict() into it",
            )
        recorded: RecordedModel | None = getattr(self._original, "origin", None)
        if recorded and (frozen := recorded.attributes.changed()):
            blocks = {*self._original.modules()}
            _warn(
                (each for each in frozen if each.is_read and each.module not in blocks),
                "of the model changed since pipekit.stages recorded it, and the layers go on with "
                "the value of before: record it again, or let the forward take it as an argument, "
                "which is then an entry of the batch",
            )

    def warn_within(self) -> None:
        """Warn of changes within a call, which stages take over at the next one."""
        changed = self._unset(self._attributes.changed(known=False))
        _warn(
            (each for each in changed if isinstance(each.value, float)),
            f"of the model changed within a call of train(), and stages take it over at the next "
            f"call: {_BETWEEN}",
        )

    def _unset(self, attributes: Iterable[Attribute]) -> list[Attribute]:
        """Return those that no forward sets."""
        return [each for each in attributes if (each.module, each.key) not in self._set]


def _warn(attributes: Iterable[Attribute], of_them: str) -> None:
    """Warn of attributes, if there are any."""
    names = dict.fromkeys(f"{each.owner}.{each.key}".lstrip(".") for each in attributes)
    if names:
        warnings.warn(f"{', '.join(names)} {of_them}", stacklevel=3)


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
