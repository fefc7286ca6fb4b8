"""What updates need of a stage's weights, and how their gradients travel."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from pipekit.bucketing import buckets
from pipekit.devices import CPU, Event, record_event, wait_event
from pipekit.engine.transport import FlatBucket

Gradients = list[Tensor | None]


class Bucket:
    """Gradients of a stage's trained ``parameters``, by number, of one dtype, summed together."""

    def __init__(self, parameters: Sequence[int], like: Sequence[Tensor]) -> None:
        self.parameters, self._like = parameters, like
        self._sizes = [tensor.numel() for tensor in like]
        # Fresh pages cost more than the copy into them.  Each waits for the work that read it.
        self._free: list[tuple[Tensor, Event]] = []
        self._lent: Tensor | None = None  # what the last sum's gradients lie in

    @torch.no_grad()
    def flat(self, gradients: Gradients | None) -> FlatBucket:
        """Copy the gradients into one tensor; zeros for missing ones, None for room alone."""
        found = require_dense(gradients or [None] * len(self._like))
        if self._free:
            numbers, read = self._free.pop()
            wait_event(numbers.device, read)
        else:
            numbers = self._like[0].new_empty(sum(self._sizes)).detach()
        for piece, gradient in zip(numbers.split(self._sizes), found, strict=True):
            if gradient is None:
                piece.zero_()
            else:
                piece.view(gradient.shape).copy_(gradient)
        present = [gradient is not None for gradient in found]
        return FlatBucket(numbers, torch.tensor(present, dtype=torch.uint8, device=CPU))

    def gradients(self, content: FlatBucket) -> Iterator[tuple[int, Tensor | None]]:
        """Yield (parameter, gradient) as views of the content."""
        pieces = content.numbers.split(self._sizes)
        for number, piece, like, present in zip(
            self.parameters, pieces, self._like, content.present.tolist(), strict=True
        ):
            yield number, piece.view(like.shape) if present else None

    def lend(self, total: FlatBucket) -> Iterator[tuple[int, Tensor | None]]:
        """Yield :meth:`gradients` of a sum, which last until the next one is lent.

        All workers have finished the last sum by then, and read what they were sent of it.
        """
        if self._lent is not None:
            self._free.append((self._lent, record_event(self._lent.device)))
        self._lent = total.numbers
        return self.gradients(total)


def require_dense(gradients: Gradients) -> Gradients:
    """Return gradients; raise ValueError if one is sparse."""
    if any(gradient is not None and gradient.is_sparse for gradient in gradients):
        raise ValueError(
            "sparse gradients cannot be summed by the workers of a stage, or with those of shared "
            "weights: make the layer with sparse=False, or keep its stage on one worker"
        )
    return gradients


def parameter_buckets(parameters: Mapping[int, Tensor]) -> list[Bucket]:
    """Return the :func:`buckets` of trained parameters, given by their numbers in the stage."""
    numbers = list(parameters)
    sizes = [max(1, p.nbytes) for p in parameters.values()]  # an empty one too has a gradient
    groups = [
        [numbers[place] for place in group]
        for group in buckets(sizes, [p.dtype for p in parameters.values()])
    ]
    return [Bucket(group, [parameters[n] for n in group]) for group in groups]
