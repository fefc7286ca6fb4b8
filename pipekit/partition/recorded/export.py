"""Export a module: torch.export traces it in both modes, for any number of rows and any lengths."""

from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from pipekit.layers.modes import in_evaluation, set_mode
from pipekit.partition.exporting.graph import GraphReader
from pipekit.partition.exporting.images import IMAGE_DIMENSIONS, images_vary
from pipekit.partition.exporting.lost import require_nothing_lost
from pipekit.partition.exporting.sizes import ROWS
from pipekit.partition.recorded.part import Part
from pipekit.partition.recorded.recorded_model import RecordedModel, Trial
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.blocks import Wish, find_blocks, opaque, wished_blocks
from pipekit.partition.recording.program import Growth, Program
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import Size, values
from pipekit.partition.recording.untouched import (
    device_of,
    drawing_from_torch,
    left_as_it_was,
    run_to_look_at,
)

_ADVICE = (
    "use way='record', which leaves the blocks as they are; or, for way='export', let the model do "
    "the same when it is traced as ever: transformers' by attn_implementation='eager', those with "
    "nn.MultiheadAttention by torch.backends.mha.set_fastpath_enabled(False)"
)


def export(model: nn.Module, example: Any, blocks: Wish | None = None) -> RecordedModel:
    """Return a module as a row of layers of exported operators, cut where its blocks end.

    ``torch.export`` traces the forward in training and in evaluation mode, with all dimensions of
    the batch's tensors free that it can leave free; those of images, if the model takes larger
    ones and cuts none into windows or patches.  Its buffers, modes and the random generators are
    left as they were.

    Args:
        model: any module without hooks, autograd functions of its own or activation checkpointing.
        example: a batch of at least two rows: a tensor, a tuple or list of positional arguments, or
            a dict of keyword arguments.  What is no tensor stays as it is for ever.
        blocks: modules that stay whole, by name or class; None: the outermost repeated ones.

    Raises:
        NotRecordable: torch.export refuses the model, or would lose a part of what it does; the
            message says where and what to do.
    """
    rows = batches.rows_of(example)
    names = find_blocks(model) if blocks is None else wished_blocks(model, blocks)
    whole = opaque(model, names)
    programs: list[Program] = []
    kept = in_evaluation(model)
    with left_as_it_was(model):
        images_free = images_vary(model, example)
        for training in (True, False):
            set_mode(model, training, kept)
            if training:
                with drawing_from_torch():
                    require_nothing_lost(model, example)
            args, kwargs = _arguments(batches.differentiable_copy(example))
            exported = _exported(model, args, kwargs, rows, images_free)
            reader = GraphReader(exported, model, whole, device_of(model), rows)
            with run_to_look_at(model):
                program = reader.read(args, kwargs)
            programs.append(replace(program, batch=_of_batch(program.batch, example)))
        trials = [Trial(f"{rows + 1} rows", _resized(example, programs[0], {ROWS: rows + 1}))]
        if any(size != ROWS for program in programs for size in program.sizes):
            trial = _other_lengths(model, example, programs)
            if trial:
                trials.append(trial)
            else:
                programs = [_of_one_length(program) for program in programs]
    return RecordedModel(model, programs[0], programs[1], rows, trials, advice=_ADVICE)


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a batch as positional and keyword arguments."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}


def _of_batch(template: Any, example: Any) -> Any:
    """Return the template of the batch from that of (positional, keyword) arguments."""
    args, kwargs = template.children
    if isinstance(example, dict):
        return kwargs
    return args if isinstance(example, (tuple, list)) else args.children[0]


def _exported(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rows: int,
    images_free: bool,
) -> torch.export.ExportedProgram:
    """Export with all dimensions free; if torch cannot, with the rows alone.

    Images keep their size unless they may vary (:func:`images_vary`).
    """

    def free(lengths: bool, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        varies = lengths and (images_free or leaf.dim() < IMAGE_DIMENSIONS)
        return tuple(
            Dim.AUTO if varies or (not n and r == rows) else None for n, r in enumerate(leaf.shape)
        )

    def attempt(lengths: bool) -> torch.export.ExportedProgram:
        spec = pytree.tree_map(partial(free, lengths), kwargs or args)
        # Where it fails, it prints the whole graph.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            return torch.export.export(model, args, kwargs, dynamic_shapes=spec, strict=False)

    try:
        return attempt(lengths=True)
    except Exception:  # it has many kinds, and a solver that gives up on some lengths
        try:
            return attempt(lengths=False)
        except Exception as error:
            mode = "training" if model.training else "evaluation"
            said = str(error).strip().partition("\n")[0]
            raise NotRecordable(
                f"torch.export refuses the model in {mode} mode ({type(error).__name__}: {said}): "
                f"use way='record', which leaves the blocks as they are"
            ) from error


def _other_lengths(model: nn.Module, example: Any, programs: list[Program]) -> Trial | None:
    """Return a batch whose sizes all differ from the example's, which model and graphs take."""
    known = programs[0].sizes
    for times, plus in ((1, -1), (1, 1), (0.5, 0), (2, 0)):
        sizes = {name: int(times * n) + plus for name, n in known.items()}
        sizes[ROWS] = known[ROWS] + 2
        batch = _resized(example, programs[0], sizes)
        if _runs(model, batch) and all(_takes(model, program, batch) for program in programs):
            lengths = " x ".join(str(n) for name, n in sizes.items() if name != ROWS)
            return Trial(f"{sizes[ROWS]} rows of length {lengths}", batch)
    return None


def _of_one_length(program: Program) -> Program:
    """Return a program that takes batches of the example's lengths only."""
    fixed = (Size(f"{name} == {n}") for name, n in program.sizes.items() if name != ROWS)
    return replace(program, limits=(*program.limits, *fixed))


def _resized(example: Any, program: Program, sizes: Mapping[str, int]) -> Any:
    """Return a batch made from the example, of other sizes where these are given."""

    def length(growth: Growth | None, known: int) -> int:
        if growth is None or growth.size not in sizes:
            return known
        return growth.length_at(sizes[growth.size])

    made = (program.made[number] for number in values(program.batch))
    return batches.with_shapes(example, [list(map(length, m.grows, m.shape)) for m in made])


@torch.no_grad()
def _runs(model: nn.Module, batch: Any) -> bool:
    """Return whether the model takes a batch; beyond its tables' ends, say, it does not."""
    try:
        with run_to_look_at(model):
            batches.call(model, batch)
    except Exception:  # whatever it says of that batch
        return False
    return True


@torch.no_grad()
def _takes(model: nn.Module, program: Program, batch: Any) -> bool:
    """Return whether a program is for batches of such sizes."""
    try:
        with run_to_look_at(model):
            Part.of(program, 0, len(program.steps)).run(model, batch)
    except ValueError:
        return False
    return True
