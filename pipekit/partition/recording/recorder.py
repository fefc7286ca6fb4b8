"""One forward of a model, recorded: what its modules are called with, and what lies between."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from pipekit.partition.recording.known_tensors import KnownTensors
from pipekit.partition.recording.operators import (
    BEYOND_TENSORS,
    READS,
    RecordedOperators,
    last_name,
    name_of,
)
from pipekit.partition.recording.program import Program, RecordedStep, Within
from pipekit.partition.recording.refusal import NotRecordable, ReadsNumbers, caller
from pipekit.partition.recording.templates import (
    Constant,
    NamedWeight,
    Template,
    Value,
    entries,
    leaves,
    map_leaves,
    tensors,
)
from pipekit.partition.recording.traced import traced

LENGTH = "v"  # begins the name of a value's length: v7_1 is that of value 7's dimension 1


class Way(NamedTuple):
    """How a forward is recorded."""

    traced: bool = False  # and told so, that it reads no numbers of tensors where it need not
    freeze: bool = False  # what it reads is taken to be always the same


PLAIN = Way()


class _Before(NamedTuple):
    arguments: Any
    tensors: list[Tensor]
    versions: list[int]
    grad: bool
    autocast: tuple[str, torch.dtype | None, bool, bool] | None


class Recorder(TorchFunctionMode):
    """Records while it is entered; modules that are opaque are one step each.

    Refused is what Python reads from a tensor.
    """

    def __init__(
        self,
        model: nn.Module,
        opaque: Mapping[nn.Module, str],
        device: torch.device,
        way: Way,
        operators: RecordedOperators,
    ) -> None:
        super().__init__()
        self._opaque, self._way = opaque, way
        self._depth, self._in_function = 0, False
        self._entered: tuple[_Before, Template] | None = None  # of the opaque module that runs
        self._known = KnownTensors(model)
        self._constants: dict[int, Constant] = {}
        self._operators = operators
        self._device, self._autocasts = device.type, _autocast_depth()
        self._inner = WeakIdKeyDictionary()  # what modules in blocks return, and by which step
        self._calls = Counter[str]()  # of modules in the block that runs
        self._steps: list[RecordedStep] = []
        self._frozen: list[str] = []
        self._compared: dict[str, None] = {}
        self._buffers = {name for name, each in model.named_buffers() if not each.requires_grad}

    def run(self, call: Callable[[Any], Any], batch: Any) -> Program:
        template = map_leaves(
            lambda leaf: self._known.add(leaf, "the batch") if isinstance(leaf, Tensor) else leaf,
            batch,
        )
        self._entries = entries(template)
        with self._watching(), self._traced_if_asked(), self._operators, self:
            output = call(batch)
        _require_output(output)
        returned = map_leaves(self._leaf, output)
        return Program(
            batch=template,
            steps=tuple(self._steps),
            output=returned,
            made=self._known.made(),
            frozen=tuple(self._frozen),
            compared=tuple(self._compared),
        )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one function of torch, and record it if tensors come of it between the blocks."""
        kwargs = kwargs or {}
        if self._depth:
            return func(*args, **kwargs)
        before = self._before((args, kwargs))
        self._operators.reset()
        self._in_function = True
        try:
            result = func(*args, **kwargs)
        finally:
            self._in_function = False
        name = last_name(func)
        if func == Tensor.requires_grad.__set__:  # type: ignore[attr-defined]
            self._known.note(args[0])  # of an input, say for checkpointing: weights need none of it
            return result
        if args and isinstance(result, torch.Size):
            return self._traced(args[0], result)
        if name == "size":
            return self._traced(args[0], args[0].size())[kwargs.get("dim", args[-1])]
        if name in ("numel", "nelement"):
            return math.prod(self._traced(args[0], args[0].shape))
        if name in READS:
            self._read(func, before, result)
        elif name in BEYOND_TENSORS:
            raise NotRecordable(
                f"Tensor.{name} at {caller()} acts on a tensor between the blocks, where "
                f"stages would not repeat it: call it within a module, and make that a block by "
                f"blocks=[...]"
            )
        elif tensors(result) or self._edited(before):
            if self._operators.shape_from_data and self._sources(before.tensors) is not None:
                raise NotRecordable(
                    f"{name} at {caller()} gives a tensor whose size depends on the numbers in the "
                    f"batch: put it into a block by blocks=[...], or use torch.where or masks of "
                    f"fixed size"
                )
            self._known.require_unchanged(before.tensors)
            template = map_leaves(self._leaf, before.arguments)
            self._add(before, template, result, operation=name_of(func))
        return result

    def _traced(self, tensor: Any, lengths: torch.Size) -> torch.Size:
        """Return the lengths of a value as numbers that know what is computed from them."""
        reference = self._known.reference(tensor)
        if not isinstance(reference, Value):
            return lengths
        return torch.Size(
            traced(length, f"{LENGTH}{reference.number}_{dimension}", self._compare)
            for dimension, length in enumerate(lengths)
        )

    def _compare(self, comparison: str) -> None:
        if not (self._depth or self._in_function):  # which compare again, whatever they are given
            self._compared[comparison] = None

    @contextmanager
    def _watching(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for module, name in self._opaque.items():
                if isinstance(module, torch.jit.ScriptModule):
                    raise NotRecordable(
                        f"{name} is a compiled script, at which recording cannot stop: put it into "
                        f"a module of your own and make that a block by blocks=[...], or leave "
                        f"torch.jit out"
                    )
                enter, leave = partial(self._enter, name), partial(self._leave, name)
                hooks.enter_context(
                    module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                )
                hooks.enter_context(
                    module.register_forward_hook(leave, with_kwargs=True, always_call=True)
                )
                for inner, each in module.named_modules(prefix=name):
                    if each is not module and not isinstance(each, torch.jit.ScriptModule):
                        note = partial(self._note_inner, inner)
                        hooks.enter_context(each.register_forward_hook(note))
            yield

    def _note_inner(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        """Note what a module within a block returns: hooks may collect it for the model."""
        for place, tensor in enumerate(tensors(output)):
            self._inner[tensor] = len(self._steps), Within(name, self._calls[name], place)
        self._calls[name] += 1

    @contextmanager
    def _traced_if_asked(self) -> Iterator[None]:
        """Let code between the blocks, in this thread, find ``torch.jit.is_tracing()`` true."""
        asked: Callable[[], bool] = vars(torch.jit)["is_tracing"]
        thread = threading.get_ident()

        def answer() -> bool:
            between = not (self._depth or self._in_function) and threading.get_ident() == thread
            return between or asked()

        with patch.object(torch.jit, "is_tracing", answer) if self._way.traced else nullcontext():
            yield

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._calls.clear()
            _refuse_packed(name, *args, *kwargs.values())
            self._operators.reset()
            before = self._before((args, kwargs))
            self._known.require_unchanged(before.tensors)
            self._entered = before, map_leaves(self._leaf, before.arguments)

    def _leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._depth == 1 and self._entered:
            _refuse_packed(name, output)
            self._add(*self._entered, output, module=name)
            self._entered = None
        self._depth -= 1

    def _before(self, arguments: Any) -> _Before:
        found, kind, autocast = tensors(arguments), self._device, None
        if _autocast_depth() != self._autocasts:
            enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            autocast = kind, dtype, enabled, torch.is_autocast_cache_enabled()
        versions = [tensor._version for tensor in found]
        return _Before(arguments, found, versions, torch.is_grad_enabled(), autocast)

    def _edited(self, before: _Before) -> list[Tensor]:
        pairs = zip(before.tensors, before.versions, strict=True)
        return [tensor for tensor, version in pairs if tensor._version != version]

    def _add(self, before: _Before, template: Template, result: Any, **called: Any) -> None:
        edited = self._edited(before)
        if any(id(tensor) in self._constants for tensor in edited):
            raise NotRecordable(
                f"{caller()} changes a tensor in place that is neither a parameter nor a buffer: "
                f"make it one by register_buffer()"
            )
        references = [self._known.reference(tensor) for tensor in edited]
        step = RecordedStep(
            **called,
            arguments=template,
            edits=frozenset(each.number for each in references if isinstance(each, Value)),
            edited_weights=frozenset(chain.from_iterable(map(self._operators.sharing, edited))),
            grad=before.grad,
            autocast=before.autocast,
            random=self._operators.drew,
            place=caller(),
        )
        made = [self._known.add(tensor, step.title) for tensor in tensors(result)]
        for tensor in edited:
            self._known.note(tensor)
        self._steps.append(replace(step, results=tuple(value.number for value in made)))

    def _leaf(self, leaf: Any) -> Template:
        if not isinstance(leaf, Tensor):
            return leaf
        known = self._known.reference(leaf)
        if isinstance(known, NamedWeight) and known.name in self._buffers:
            return self._read_buffer(leaf, known)
        if known:
            return known
        if leaf in self._inner:
            return self._from_within(leaf)
        if leaf.requires_grad:
            raise NotRecordable(
                f"{caller()} uses a tensor that neither a module's output nor an operation of "
                f"torch gave: make a weight an nn.Parameter; return tensors from blocks in tuples, "
                f"lists or dicts; a custom autograd function or torch.func must run within a "
                f"module; make that, or a module around both ends, a block by blocks=[...]"
            )
        return self._constants.setdefault(id(leaf), Constant(leaf))

    def _read_buffer(self, buffer: Tensor, known: NamedWeight) -> Value:
        """Read a buffer, a mask say, as a value that stages carry: only one of them may have it."""
        value = self._known.add(buffer, known.name, read=True)
        self._steps.append(
            RecordedStep(
                operation="torch.Tensor.detach",
                arguments=((known,), {}),
                results=(value.number,),
                place=known.name,
            )
        )
        return value

    def _from_within(self, leaf: Tensor) -> Value:
        position, within = self._inner[leaf]
        step = self._steps[position]
        value = self._known.add(leaf, step.title)
        self._steps[position] = replace(
            step, results=(*step.results, value.number), within=(*step.within, within)
        )
        return value

    def _sources(self, found: Iterable[Tensor]) -> list[int] | None:
        """Return of which values of the batch tensors are made; None: they are always the same."""
        references = [*map(self._known.reference, found)]
        made_of = {each.number for each in references if isinstance(each, Value)}
        varies = any(isinstance(each, NamedWeight) for each in references)
        for step in reversed(self._steps):
            if not made_of.isdisjoint((*step.results, *step.edits)):
                made_of |= step.reads
                varies |= bool(step.module or step.weights or step.random)
        sources = sorted(made_of & self._entries.keys())
        return sources if sources or varies else None

    def _read(self, func: Callable[..., Any], before: _Before, result: Any) -> None:
        sources = self._sources(before.tensors)
        if sources is None:
            return
        name = last_name(func)
        if not self._way.freeze:
            raise ReadsNumbers(
                f"{caller()} reads numbers of a tensor into Python ({name}), so that what follows "
                f"may depend on the batch: avoid it, put it into a block by blocks=[...], or, if "
                f"it is the same for all your batches, pass freeze=True (in transformers with "
                f"config.encoder_layerdrop = config.decoder_layerdrop = 0; without a mask, set "
                f"config.pad_token_id = None)"
            )
        shown = str(result)
        read = f"{caller()}: {shown if len(shown) < 40 else name}"
        for number in sources:
            read += f", read from {self._entries[number]}"
            if self._known.is_all_one(number):
                read += ", in which all is 1 (if it is a mask, give an example with padding)"
        self._frozen.append(read)
        if isinstance(result, (bool, int, float)):
            template = map_leaves(self._leaf, before.arguments)
            self._add(before, template, None, operation=name_of(func), held=result)


def _refuse_packed(name: str, *passed: Any) -> None:
    if any(isinstance(one, PackedSequence) for one in passed):
        raise NotRecordable(
            f"{name} is given or gives a PackedSequence, which cannot pass from stage to stage: "
            f"put packing, the recurrent layer and unpacking into one module, and make that a "
            f"block by blocks=[...]"
        )


def _require_output(output: Any) -> None:
    for leaf in leaves(output):
        if not isinstance(leaf, Tensor) and leaf is not None:
            advice = (
                "pass use_cache=False, or set model.config.use_cache = False"
                if "Cache" in type(leaf).__name__
                else "return tensors only, in tuples, lists or dicts"
            )
            raise NotRecordable(
                f"the model returns a {type(leaf).__name__}, which is not a tensor: {advice}"
            )


def _autocast_depth() -> int:
    """Return how many ``torch.autocast`` this thread is in, those that are disabled, too."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
