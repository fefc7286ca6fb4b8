"""What all stages settle together before an update: whether to make it, and how far it goes.

One sum over all workers an update: the norm of each parameter's gradient if they are clipped, and
how many workers have found one that is not finite if losses are scaled.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipekit.engine.buckets import Gradients
from pipekit.engine.links import Links
from pipekit.engine.loss_scaler import LossScaler

_ABSENT = -1.0  # stands for the norm of a gradient that there is not


class JointUpdates:
    """A stage's part in it.

    Args:
        clip_norm: largest norm of an update's gradient over all stages, or None.
        scaler: of the losses, or None.
        parameters: trained parameters of the whole model.
        numbers: among these, of the stage's own, whose norms this worker tells; None for one that
            another stage counts.
        dtype: of the norm over them all.
        links: to the other workers.
        device: where the gradients lie.
    """

    def __init__(
        self,
        clip_norm: float | None,
        scaler: LossScaler | None,
        parameters: int,
        numbers: Sequence[int | None],
        dtype: torch.dtype,
        links: Links,
        device: torch.device,
    ) -> None:
        self._clip_norm, self._scaler, self._numbers = clip_norm, scaler, numbers
        self._links = links
        count = 0 if clip_norm is None else parameters
        self._zeros = torch.zeros(count + 1, dtype=dtype, device=device)

    def settle(self, gradients: Gradients, update: int) -> bool:
        """Undo the loss scale and clip; return whether to make the update.

        It is not made if losses are scaled and a gradient of any stage is not finite.
        """
        found = [gradient for gradient in gradients if gradient is not None]
        values, scaler = self._zeros.clone(), self._scaler
        if scaler is not None:
            inverse = 1 / scaler.scale(update)
            for gradient in found:
                gradient.mul_(inverse)
            values[-1] = not _all_finite(found)
        if self._clip_norm is not None:
            for number, one in zip(self._numbers, gradients, strict=False):
                if number is not None:
                    values[number] = _ABSENT if one is None else torch.linalg.vector_norm(one)
        values = self._links.all_reduce(values, update)
        if scaler is not None:
            finite = values[-1].item() == 0
            scaler.note(update, finite)
            if not finite:
                return False
        if self._clip_norm is not None:
            _clip(found, values[:-1], self._clip_norm)
        return True


def _all_finite(gradients: list[Tensor]) -> bool:
    each = [gradient.isfinite().all() for gradient in gradients]
    return not each or bool(torch.stack(each).all())


def _clip(gradients: list[Tensor], norms: Tensor, limit: float) -> None:
    """Scale gradients by the norm over all stages, summed as for the unsplit model."""
    total = torch.linalg.vector_norm(norms[norms != _ABSENT])
    scale = torch.clamp(limit / (total + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
