"""Record a module: it runs in both modes with two numbers of rows, and is left as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from pipekit.devices import random_states_put_back
from pipekit.layers.buffers import buffers_untouched
from pipekit.partition.recorded.recorded_model import RecordedModel
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.blocks import Wish, containers, find_blocks, opaque, wished_blocks
from pipekit.partition.recording.program import Program
from pipekit.partition.recording.recorder import Recorder, Tape
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.rows import unify


def record(
    model: nn.Module, example: Any, blocks: Wish | None = None, *, freeze: bool = False
) -> RecordedModel:
    """Return a module as a row of layers: its blocks untouched, the operations between recorded.

    The model runs four times: in training and in evaluation mode, on the example's rows and on one
    row more, which tells what depends on the number of rows.  Its buffers, modes and the random
    generators are left as they were.

    Args:
        model: any module.
        example: a batch of at least two rows: a tensor, a tuple or list of positional arguments, or
            a dict of keyword arguments.  What is no tensor stays as it is for ever.
        blocks: modules that stay whole, by name or class; None: the outermost repeated ones.
        freeze: whether to hold what Python reads from tensors between blocks to be always as in
            the example; otherwise it is refused.

    Raises:
        NotRecordable: the forward cannot be cut into stages; the message says where and why.
    """
    rows = batches.rows_of(example)
    names = find_blocks(model) if blocks is None else wished_blocks(model, blocks)
    whole = opaque(model, names)
    outer = containers(model, names)
    device = _device_of(model)
    programs: list[Program] = []
    frozen: list[str] = []
    with left_as_it_was(model):
        for training in (True, False):
            model.train(training)
            tapes: list[Tape] = []
            for count in (rows, rows + 1):
                sample = example if count == rows else batches.with_rows(example, count)
                sample = batches.differentiable_copy(sample)
                with buffers_untouched(model), _stateless(outer, model), torch.enable_grad():
                    recorder = Recorder(model, whole, device, freeze)
                    try:
                        tapes.append(recorder.run(partial(batches.call, model), sample))
                    except Exception as error:
                        mode = "training" if training else "evaluation"
                        error.add_note(f"(raised in recording, in {mode} mode, on {count} rows)")
                        raise
            programs.append(unify(tapes[0], tapes[1], (rows, rows + 1), device))
            frozen += tapes[0].frozen
    return RecordedModel(
        model, programs[0], programs[1], (rows, rows + 1), list(dict.fromkeys(frozen))
    )


def _device_of(model: nn.Module) -> torch.device:
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back the modes of all modules, and the state of the random generators."""
    modes = {module: module.training for module in model.modules()}
    with random_states_put_back(_device_of(model)):
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


@contextmanager
def _stateless(outer: set[nn.Module], model: nn.Module) -> Iterator[None]:
    """Refuse a forward that keeps something in its module, where stages would not find it.

    Args:
        outer: the modules whose forward is recorded.
        model: which names them.
    """
    names = {module: name for name, module in model.named_modules()}
    before = {module: _state(module) for module in outer}
    yield
    for module, state in before.items():
        after = _state(module)
        changed = [key for key in after if key not in state or after[key] is not state[key]]
        if changed:
            raise NotRecordable(
                f"the forward of {names[module] or type(model).__name__} sets {changed[0]!r}, "
                f"which stages would not do: keep it in a buffer that is edited in place, or put "
                f"what sets and what reads it into one block by blocks=[...]"
            )


def _state(module: nn.Module) -> dict[str, Any]:
    """Return what a module has, its buffers included, but for what torch keeps there for itself."""
    kept = ("_buffers", "_modules", "_parameters")
    own = {key: value for key, value in vars(module).items() if key not in kept}
    own = {k: v for k, v in own.items() if not k.endswith("_hooks")}
    return own | module._buffers | module._parameters
