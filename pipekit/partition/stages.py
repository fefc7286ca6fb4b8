"""Any module, cut into layers that pipelines, profiles and planners take."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import nn

from pipekit.host.user_frames import hiding_frames, warn
from pipekit.partition.checks import require_data
from pipekit.partition.recording.batch import first_forward, hooks_of
from pipekit.partition.recording.modules import Wish
from pipekit.partition.recording.record import record, warn_of_hooks
from pipekit.partition.recording.recorded_model import RecordedModel, RecordedSequence
from pipekit.partition.recording.recorder import Way
from pipekit.partition.recording.refusal import NotRecordable, ReadsNumbers
from pipekit.partition.verify import verify


@hiding_frames
def stages(
    model: nn.Module,
    example: Any,
    blocks: Wish | None = None,
    *,
    freeze: bool = False,
) -> RecordedSequence:
    """Return any module as a sequence of layers, each of which may begin a stage.

    The model runs on the example, and what its modules are called with is recorded.  Its blocks
    stay the model's own modules, with their hooks, autograd functions and checkpointing; the
    operations of torch between them are run again from the record, for any number of rows, and for
    other lengths where the model takes these, runs the same operations then, and can be cut at as
    many places.  A batch with another length is refused when it comes.  Lengths that are equal in
    two of the example's tensors are one length.

    Tensors that are used later go along from layer to layer.  The layers are compared with the
    unsplit model on other rows and lengths: outputs in training and in evaluation mode, buffers and
    all gradients must be equal to the bit, or nothing is returned.

    Args:
        model: any module.  It is neither changed nor copied; the layers have its own tensors.
        example: a batch of at least two rows: a tensor, a tuple or list of positional arguments, or
            a dict of keyword arguments.  What is no tensor in it stays as it is for ever.
        blocks: modules that stay whole, by name or class.  By default the outermost repeated ones:
            elements of ``nn.Sequential``, ``nn.ModuleList`` and ``nn.ModuleDict``, and three or
            more children of one class.
        freeze: whether what Python reads from tensors between blocks (``.item()``, ``if``) is held
            to be always as in the example, with a warning; otherwise it is refused.

    Returns:
        The layers; ``print`` shows them as a table.

    Raises:
        TypeError: the model is no module.
        ValueError: the model has no data.
        NotRecordable: the model cannot be cut so, or the layers do not do what it does; the message
            says where and what to do.

    Warns:
        UserWarning: of what was held; of forward hooks outside the blocks, whose other effects
            stages do not have.
    """
    if isinstance(model, type):
        raise TypeError(f"{model.__name__} is a class: make a model of it, {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be an nn.Module, not {type(model).__name__}")
    require_data(model)
    if isinstance(example, Mapping):
        example = dict(example)  # as tokenizers and data collators give it, whose class is no dict
    warn_of_hooks(model, blocks)
    hooks = hooks_of(model)
    try:
        recorded = _recorded(model, example, blocks, freeze)
    except NotRecordable:
        if all(now.keys() == before.keys() for now, before in hooks):
            raise
        for now, before in hooks:
            now.clear()
            now.update(before)
        first_forward(model, example)  # which gives modules their hooks
        recorded = _recorded(model, example, blocks, freeze)
    if recorded.frozen:
        warn(
            f"all batches are assumed to be like the example in these respects: "
            f"{'; '.join(recorded.frozen)}"
        )
    return RecordedSequence.of(recorded)


def _recorded(model: nn.Module, example: Any, blocks: Wish | None, freeze: bool) -> RecordedModel:
    """A forward that reads numbers of tensors is recorded as it behaves under tracing.

    Masks are then applied whether or not they hide something; only then is what it reads frozen.
    """
    frozen = [Way(traced=True, freeze=True), Way(freeze=True)] if freeze else []
    for way in [Way(), Way(traced=True), *frozen]:
        try:
            *with_lengths, of_any_rows = record(model, example, blocks, way)
            for recorded in with_lengths:
                with suppress(NotRecordable):
                    return verify(recorded)
            return verify(of_any_rows)
        except ReadsNumbers as error:
            refusal: NotRecordable = error
        except Exception as error:  # whatever the model says, of being traced or of the batch
            if not way.traced:
                raise
            said = str(error).strip().partition("\n")[0]
            refusal = NotRecordable(f"{refusal}; as under tracing, {type(error).__name__}: {said}")
    raise refusal
