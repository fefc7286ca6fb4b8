"""Whether the rows of a batch are independent: microbatches then are what their batch is."""

from typing import Any

import torch
from torch import Tensor, nn

from pipekit.layers.autocast import rounding
from pipekit.layers.modes import set_mode
from pipekit.partition.recorded.recorded_model import RecordedModel
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.templates import tensors
from pipekit.partition.recording.untouched import left_as_it_was, run_to_look_at


def mixed_rows(recorded: RecordedModel) -> str | None:
    """Return what tells that a model mixes the rows of a batch; None: nothing does.

    In evaluation mode, where batch norm does not, its outputs for a batch are compared with those
    for the same batch without its first row.  Outputs without rows, a loss say, tell nothing, nor
    does a model that draws random numbers or takes no such batch.
    """
    if any(step.random for step in recorded.evaluation.steps):
        return None
    model = recorded.model
    whole = recorded.trials[0].batch
    rows = batches.rows_of(whole)
    with left_as_it_was(model), torch.no_grad():
        set_mode(model, False, recorded.kept)
        try:
            outputs = [_run(model, batch) for batch in (whole, batches.without_first_row(whole))]
        except Exception:  # of one row less: whatever it says of that
            return None
    for number, (full, rest) in enumerate(zip(*outputs, strict=False)):
        if not full.is_floating_point() or not full.dim() or len(full) != rows:
            continue
        if rest.shape != full[1:].shape:
            return f"tensor {number} of the output has the shape {list(rest.shape)} then"
        furthest, largest = (full[1:] - rest).abs().max().item(), full.abs().max().item()
        if furthest > rounding(full.dtype) * largest:
            return f"tensor {number} of the output changes by {furthest:.2g} then"
    return None


def _run(model: nn.Module, batch: Any) -> list[Tensor]:
    with run_to_look_at(model):
        return tensors(batches.call(model, batch))
