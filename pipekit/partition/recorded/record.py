"""Record a module: it runs in both modes with two numbers of rows, and is left as it was."""

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from pipekit.layers.modes import in_evaluation, set_mode
from pipekit.layers.python_state import module_names
from pipekit.partition.recorded.recorded_model import RecordedModel, Trial
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.blocks import Wish, containers, find_blocks, opaque, wished_blocks
from pipekit.partition.recording.program import Program
from pipekit.partition.recording.recorder import Recorder, Tape
from pipekit.partition.recording.rows import unify
from pipekit.partition.recording.shared_buffers import with_carried_buffers
from pipekit.partition.recording.untouched import (
    device_of,
    drawing_from_torch,
    left_as_it_was,
    run_to_look_at,
    stateless,
)

_ADVICE = (
    "name a module around the part in question as a block by blocks=[...]; for transformers try "
    "attn_implementation='eager' and use_cache=False; torch.utils.checkpoint needs "
    "use_reentrant=False"
)


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

    Warns:
        UserWarning: modules outside the blocks have hooks.
    """
    rows = batches.rows_of(example)
    names = find_blocks(model) if blocks is None else wished_blocks(model, blocks)
    whole = opaque(model, names)
    outer = containers(model, names)
    _warn_of_hooks(model, outer)
    device, kept = device_of(model), in_evaluation(model)
    programs: list[Program] = []
    frozen: list[str] = []
    with left_as_it_was(model), drawing_from_torch():
        for training in (True, False):
            set_mode(model, training, kept)
            tapes: list[Tape] = []
            for count in (rows, rows + 1):
                sample = example if count == rows else batches.with_rows(example, count)
                sample = batches.differentiable_copy(sample)
                with run_to_look_at(model), stateless(outer, model), torch.enable_grad():
                    recorder = Recorder(model, whole, device, freeze)
                    try:
                        tapes.append(recorder.run(partial(batches.call, model), sample))
                    except Exception as error:
                        mode = "training" if training else "evaluation"
                        error.add_note(f"(raised in recording, in {mode} mode, on {count} rows)")
                        if isinstance(error, TypeError):
                            error.add_note(
                                "(the example's entries are the forward's arguments, those of a "
                                "dict by name: leave out what only the loss takes)"
                            )
                        raise
            program = unify(tapes[0], tapes[1], (rows, rows + 1), device)
            programs.append(with_carried_buffers(program, model))
            frozen += tapes[0].frozen
    trial = Trial(f"{rows + 2} rows", batches.with_rows(example, rows + 2))
    return RecordedModel(
        model, programs[0], programs[1], rows, [trial], list(dict.fromkeys(frozen)), _ADVICE
    )


def _warn_of_hooks(model: nn.Module, outer: set[nn.Module]) -> None:
    """Say which modules have hooks of which stages run no more than the operations on tensors."""
    hooked = [
        name
        for module, name in module_names(model).items()
        if module in outer and (module._forward_hooks or module._forward_pre_hooks)
    ]
    if hooked:
        warnings.warn(
            f"{', '.join(hooked)} has forward hooks outside the blocks: stages run again what they "
            f"do to tensors, and not what they print or keep. Register them on modules within "
            f"blocks, or name a module around them as a block by blocks=[...]",
            stacklevel=3,
        )
