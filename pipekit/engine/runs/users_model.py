"""The user's own model and loss beside a pipeline's copies: changes are taken over, or noticed."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.engine.config import Loss
from pipekit.engine.observers.reporter import BatchDone, OnBatch
from pipekit.host.user_frames import warn
from pipekit.layers.module_state import named_buffers
from pipekit.layers.python_state import Change, PythonState
from pipekit.layers.user_functions import FunctionState
from pipekit.partition.probe import Probe
from pipekit.partition.recording.recorded_model import RecordedModel
from pipekit.trees import is_plain

_LOOKED_AT = 2**10  # elements of a tensor: all would take longer than a batch
_BETWEEN = "change it between calls"


class UsersModel:
    """The user's layers, whose changes a pipeline's copies of them do not see by themselves."""

    def __init__(self, layers: nn.Module) -> None:
        self._layers, self._modules = layers, [*layers.modules()]
        self._recorded: RecordedModel | None = getattr(layers, "origin", None)
        self._whole = self._recorded.model if self._recorded else layers
        self._before = _looks(layers, self._whole, {})
        self._own = dict(layers.named_parameters(remove_duplicate=False))
        # The parameters of which the pipeline trains copies.
        self.trained = {weight for weight in layers.parameters() if weight.requires_grad}
        self._attributes = PythonState.of_attributes(layers.named_modules(remove_duplicate=False))
        self._set: set[tuple[nn.Module | None, str]] = set()  # by forwards
        self._left: list[Change] = []

    def choose(self, names: Iterable[str], trained: bool) -> None:
        """Let the pipeline train, or not, what has these names, or is in modules with them."""
        state, own = self._layers.state_dict(keep_vars=True), {*self._own.values()}
        known = {n: e for n, e in state.items() if isinstance(e, nn.Parameter) and e in own}
        chosen = set[nn.Parameter]()
        for name in names:
            found = {e for n, e in known.items() if f"{n}.".startswith(f"{name}.")}
            if not found:
                told = repr(name) if isinstance(name, str) else f"with a {type(name).__name__}"
                raise ValueError(
                    f"the model has no parameter {told}, nor a module with parameters of that "
                    f"name: its names are those of state_dict(), {next(iter(known), '')!r} say"
                )
            chosen |= found
        self.trained = self.trained | chosen if trained else self.trained - chosen

    def mark(self, copy: nn.Module) -> None:
        """Let the parameters of a copy, or of a part of one, be trained, or not, as chosen."""
        for name, weight in copy.named_parameters(remove_duplicate=False):
            weight.requires_grad_(self._own[name] in self.trained)

    def taken(self) -> list[Change]:
        """Return changed numbers with a fraction, which stages can take over."""
        if not (changed := self._attributes.changes(known=True)):
            return []
        changed = self._unset(changed)
        self._left += [each for each in changed if not each.can_be_taken]
        return [each for each in changed if each.can_be_taken]

    def warn(self, tried: Probe | None, copies: Callable[[], Iterable[nn.Module]]) -> None:
        """Warn, once for each, of other changes, but for those that forwards make, as ``tried``."""
        if tried is not None and tried.set_attributes:
            self._set |= {(self._modules[number], key) for number, key, _ in tried.set_attributes}
        told = list[str]()
        if left := self._left:
            left, self._left = self._unset(left), []
            told += [e.name for e in left if e.is_read and not e.is_mode]
        if (now := _looks(self._layers, self._whole, self._before)) != self._before:
            told += self._unlike(now, copies)
        if told:
            warn(
                f"the model has changed since Pipeline(model) copied it (in "
                f"{told[0].lstrip('.')}), and the copy goes on as before: build the pipeline "
                f"afterwards, or call its load_state_dict() or requires_grad_(); of attributes "
                f"only numbers with a fraction are taken over"
            )
        if self._recorded and (frozen := self._recorded.attributes.changes(known=True)):
            _warn(
                (each for each in frozen if each.is_read and each.module not in {*self._modules}),
                "of the model changed since pipekit.stages recorded it, and the layers go on with "
                "the value of before: record it again, or let the forward take it as an argument, "
                "which is then an entry of the batch",
            )

    def _unset(self, changes: Iterable[Change]) -> list[Change]:
        """Return those that no forward makes."""
        return [each for each in changes if (each.module, each.key) not in self._set]

    def _unlike(
        self, now: dict[str, Any], copies: Callable[[], Iterable[nn.Module]]
    ) -> Iterator[str]:
        """Return the names of what looks otherwise than before, and is not so in copies."""
        before = self._before
        changed = [name for name in {**now, **before} if now.get(name) != before.get(name)]
        self._before = now
        layers = [*copies()]
        here, there = _tensors([self._layers]), _tensors(layers)
        ours = {module for each in layers for module in each.modules()}  # which may copy themselves
        modules = dict(self._whole.named_modules(remove_duplicate=False))

        def is_unlike(name: str) -> bool:
            if modules.get(name.removesuffix(_MODE)) in ours:
                return False
            if name in here:
                kept = there.get(name)
                return kept is None or not torch.equal(here[name].to(kept.device), kept)
            weight = self._own.get(name.removesuffix(".requires_grad"))
            return weight is None or now.get(name) != (weight in self.trained)

        return filter(is_unlike, changed)


def users_models(original: nn.Module) -> list[nn.Module]:
    """Return the user's layers, and the model of which they were recorded."""
    recorded = getattr(original, "origin", None)
    return [original, *([recorded.model] if recorded else [])]


_MODE = ".training"
_HOOKS = attrgetter(
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"
)


def _looks(layers: nn.Module, whole: nn.Module, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return by name, of each tensor and module, what other contents, objects or hooks change.

    ``whole`` is the model of which the layers were recorded, or these.  While it is in evaluation
    mode as a whole, modes are those of ``before``.
    """
    looks = dict[str, Any]()
    for name, tensor in _tensors([layers]).items():
        looks[name] = _numbers(tensor)
        if isinstance(tensor, nn.Parameter):
            looks[f"{name}.requires_grad"] = tensor.requires_grad
        hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
        looks[f"{name}'s hooks"] = [*map(tuple, filter(None, hooks))]
    evaluated, count = dict[str, Any](), 0
    for count, (name, module) in enumerate(whole.named_modules(remove_duplicate=False), 1):  # noqa: B007
        looks[f"{name or 'model'} itself"] = module, vars(module).get("forward")
        looks[f"{name or 'model'}'s hooks"] = [*map(tuple, _HOOKS(module))]
        if not module.training:
            evaluated[name + _MODE] = False
    if len(evaluated) == count:
        evaluated = {name: mode for name, mode in before.items() if name.endswith(_MODE)}
    return looks | evaluated


def _tensors(models: Iterable[nn.Module]) -> dict[str, Tensor]:
    found = dict[str, Tensor]()
    for each in models:
        found |= {**dict(each.named_parameters(remove_duplicate=False)), **named_buffers(each)}
    return found


def _numbers(tensor: Tensor) -> Any:
    """Return what other contents change; by ``.data``, if many elements of a large one change."""
    known = id(tensor), 0 if tensor.is_inference() else tensor._version
    if not is_plain(tensor):
        return known
    some = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // _LOOKED_AT]
    some = some.float() if some.is_floating_point() else some  # NumPy has no bfloat16
    return *known, zlib.crc32(some.numpy(force=True).tobytes())


def _warn(changes: Iterable[Change], of_them: str) -> None:
    names = dict.fromkeys(each.name for each in changes)
    if names:
        warn(f"{', '.join(names)} {of_them}")


def watched(on_batch: OnBatch, loss: Loss) -> OnBatch:
    """Return an ``on_batch`` that warns if it changes a loss of which workers have copies."""
    state = FunctionState(loss)

    def told(done: BatchDone) -> object:
        answer = on_batch(done)
        if names := ", ".join(state.changed()):
            warn(
                f"{names} of the loss changed within a call of train(), for all of which worker "
                f"processes have copies of the loss: {_BETWEEN}, or use transport='threads'"
            )
        return answer

    return told
