"""Any module, cut into layers that pipelines, profiles and planners take."""

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from pipekit.choices import require_choice
from pipekit.partition.checks import require_data
from pipekit.partition.independent_rows import mixed_rows
from pipekit.partition.recorded.export import export
from pipekit.partition.recorded.record import record
from pipekit.partition.recorded.sequence import RecordedSequence
from pipekit.partition.recording.blocks import Wish
from pipekit.partition.verify import verify


def stages(
    model: nn.Module,
    example: Any,
    blocks: Wish | None = None,
    *,
    way: str = "record",
    freeze: bool = False,
) -> RecordedSequence:
    """Return any module as a sequence of layers, each of which may begin a stage.

    There are two ways, with one result.

    ``way="record"``: the model runs on the example, and what its modules are called with is
    recorded.  Its blocks stay the model's own modules, called as they are, with their hooks,
    autograd functions and activation checkpointing; the operations of torch between them are run
    again from the record.  Lengths other than the number of rows are those of the example for ever;
    a batch of other lengths is refused when it comes.

    ``way="export"``: ``torch.export`` traces the model, blocks and all, into a graph of operators
    for any number of rows and, where the model allows it, any lengths.  Images keep their height
    and width if the model takes no larger ones, or cuts them into windows or patches.  What the
    graph would lose is refused.

    Tensors that are used later go along from layer to layer.  The layers are then compared with the
    unsplit model on another number of rows, and on other lengths if they may vary: outputs in
    training and in evaluation mode, buffers and all gradients must be equal to the bit, or nothing
    is returned.

    Args:
        model: any module.  It is neither changed nor copied; the layers have its own tensors.
        example: a batch of at least two rows: a tensor, a tuple or list of positional arguments, or
            a dict of keyword arguments.  What is no tensor in it stays as it is for ever.
        blocks: modules that stay whole, by name or class.  By default the outermost repeated ones:
            elements of ``nn.Sequential``, ``nn.ModuleList`` and ``nn.ModuleDict``, and three or
            more children of one class.
        way: "record" or "export".
        freeze: in recording, whether to hold what Python reads from tensors between blocks
            (``.item()``, ``if``) to be always as in the example, with a warning; otherwise it is
            refused.

    Returns:
        The layers; ``print`` shows them as a table.

    Raises:
        TypeError: the model is no module.
        ValueError: there is no such way, or the model has no data.
        NotRecordable: the model cannot be cut so, or the layers do not do what it does; the message
            says where and what to do.

    Warns:
        UserWarning: with ``freeze``, what was read where; the forward mixes rows; modules outside
            the blocks have forward hooks, whose other effects stages do not have.
    """
    require_choice("way", way, ["record", "export"])
    _require_module(model)
    if isinstance(example, Mapping):
        example = dict(example)  # as tokenizers and data collators give it, whose class is no dict
    if way == "export":
        recorded = export(model, example, blocks)
    else:
        recorded = record(model, example, blocks, freeze=freeze)
    if recorded.frozen:
        warnings.warn(
            f"what follows is held to be as in the example for all batches: "
            f"{'; '.join(recorded.frozen)}",
            stacklevel=2,
        )
    seconds = verify(recorded)
    if mixed := mixed_rows(recorded):
        warnings.warn(
            f"the rows of a batch are not independent of one another: without the first, {mixed}, "
            f"in evaluation mode, so that microbatches give something else than their batch. If "
            f"the first dimension is another one (batch_first=False), put the rows first; if rows "
            f"belong together, train with one microbatch a batch",
            stacklevel=2,
        )
    return RecordedSequence.of(recorded, seconds)


def _require_module(model: object) -> None:
    """Raise TypeError or ValueError unless it is a module that can run."""
    if isinstance(model, type):
        raise TypeError(f"{model.__name__} is a class: make a model of it, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be an nn.Module, not {type(model).__name__}")
    require_data(model)
