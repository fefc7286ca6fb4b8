"""What all stages settle together before an update: whether to make it, and how far it goes.

One sum over all workers an update: the norm of each parameter's gradient if they are clipped, and
how many workers have found one that is not finite if losses are scaled.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipekit.devices import CPU
from pipekit.engine.config import Norm
from pipekit.engine.observers.observer import Observer
from pipekit.engine.transport import Transport
from pipekit.engine.updates.weights import Gradients
from pipekit.losses.losses import LossScale
from pipekit.schedules.lowering.recurring import Recurring

_FLOAT32 = torch.finfo(torch.float32)


class LossScaler:
    """The loss scale after every update of a run.

    All losses that an update sums have one scale: the one after the oldest weight version which the
    last stage reads for them.  Every stage has made that version by then, so that nobody has to
    send the scale.

    It changes by the rule of ``torch.amp.GradScaler``, with one addition for weights that come
    late: after a bad update it is at most ``backoff`` times the scale which that update had.
    Several updates in flight with the same scale lower it once.
    """

    def __init__(self, rule: LossScale) -> None:
        self._rule = rule
        self._good = 0  # good updates since the scale last changed
        self._after = {0: rule.initial}  # by the updates that have been noted, in order
        self._versions: Recurring[int] = Recurring(())
        self.skipped: list[int] = []  # updates of this run whose gradient was not finite, from 1

    def begin(self, versions: Recurring[int]) -> None:
        """Make ready for a run."""
        self._after = {0: self._after[self._newest]}
        self._versions, self.skipped = versions, []

    def scale(self, update: int) -> float:
        """Return the scale of an update's losses; the updates up to its version have been noted."""
        return self._after[self._versions[update - 1]]

    @property
    def scales(self) -> list[float]:
        """The scales of all updates of this run that have been noted."""
        return [self.scale(update) for update in range(1, self._newest + 1)]

    @property
    def _newest(self) -> int:
        return next(reversed(self._after))

    def note(self, update: int, finite: bool) -> None:
        """Take the next update into account: whether its gradient was finite, on all stages."""
        rule, scale = self._rule, self._after[self._newest]
        if finite:
            self._good += 1
            if self._good == rule.interval:
                self._good = 0
                grown = scale * rule.growth
                scale = grown if grown <= _FLOAT32.max else scale
        else:
            self._good = 0
            self.skipped.append(update)
            scale = max(min(scale, self.scale(update) * rule.backoff), _FLOAT32.tiny)
        self._after[update] = scale

    def state_dict(self) -> dict[str, Any]:
        """Return all that has been noted in this run, of which the next run needs the end."""
        return {
            "after": list(self._after.values()),
            "good": self._good,
            "skipped": list(self.skipped),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as far in a run as the scaler was that gave ``state``."""
        self._after = dict(enumerate(state["after"]))
        self._good, self.skipped = state["good"], state["skipped"]


class GlobalUpdate:
    """A worker's part in what is settled together.

    ``scalers`` are those of its stages, none if losses are not scaled; ``numbers`` of its trained
    parameters in the model, None for one of which another worker tells.
    """

    def __init__(
        self,
        clip_norm: float | None,
        scalers: Sequence[LossScaler],
        norm: Norm,
        numbers: Sequence[int | None],
        transport: Transport,
        device: torch.device,
        worker: int,
        observer: Observer,
    ) -> None:
        self._clip_norm, self._scalers, self._numbers = clip_norm, scalers, numbers
        self._transport, self._worker, self._observer = transport, worker, observer
        count = 0 if clip_norm is None else norm.parameters
        self._zeros = torch.zeros(count + 1, dtype=norm.dtype, device=device)
        self._none = torch.zeros(count, dtype=torch.uint8, device=CPU)

    def settle(self, gradients: Gradients, update: int) -> bool:
        """Undo the loss scale and clip, once all stages have told of their gradients.

        Returns whether the update is made: not if any is not finite and losses are scaled.
        """
        values, present = self._found(gradients, update)
        self._observer.values_summed(self._worker, update, values)
        # Which gradients there are the host knows, and tells by itself: it need not wait for norms.
        given = [values] if self._clip_norm is None else [values, present]
        values, *told = self._transport.all_reduce(given, update)
        made = self._is_finite(values, update)
        norm = None
        if made and self._clip_norm is not None:
            norms, (present,) = values[:-1], told
            if not present.all():  # the unsplit model sums no others
                norms = norms[present.nonzero().flatten().to(norms.device)]
            norm = torch.linalg.vector_norm(norms)
            factor = torch.clamp(self._clip_norm / (norm + 1e-6), max=1.0)
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor.to(gradient.dtype))
        self._observer.update_decided(self._worker, update, norm)
        return made

    def _found(self, gradients: Gradients, update: int) -> tuple[Tensor, Tensor]:
        """Undo the loss scale; return norms with a 1 behind for what is not finite."""
        found = [gradient for gradient in gradients if gradient is not None]
        values, present = self._zeros.clone(), self._none.clone()
        if self._scalers:
            inverse = 1 / self._scalers[0].scale(update)
            for gradient in found:
                gradient.mul_(inverse)
            if found:
                values[-1] = ~torch.stack([_held(g).isfinite().all() for g in found]).all()
        if self._clip_norm is not None:
            for number, one in zip(self._numbers, gradients, strict=True):
                if number is not None and one is not None:
                    values[number], present[number] = torch.linalg.vector_norm(_held(one)), 1
        return values, present

    def _is_finite(self, values: Tensor, update: int) -> bool:
        """Return whether all gradients are, if losses are scaled: an accelerator is waited for."""
        if not self._scalers:
            return True
        finite = values[-1].item() == 0
        for scaler in self._scalers:
            scaler.note(update, finite)
        return finite


def _held(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
