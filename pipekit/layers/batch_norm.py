"""Batch norm for microbatches: statistics of each, running averages of the whole batch."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipekit.layers.pass_state import ends_batch


class DeferredBatchNorm(_BatchNorm):
    """Batch norm whose running averages count a batch once, however many microbatches it has.

    In training each microbatch is normalised by its own mean and variance; the running averages get
    those of the whole batch, at its last microbatch (GPipe, section 3.2).  Outside a pipeline, and
    in evaluation, it is ordinary batch norm, of inputs [rows, channels, ...].  Its ``state_dict()``
    is that of :class:`torch.nn.BatchNorm2d`.

    Args:
        given, named: those of :class:`torch.nn.BatchNorm2d`.
    """

    batch_mean: Tensor
    batch_squares: Tensor
    batch_count: Tensor

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.begin()

    def begin(self) -> None:
        """Make room for the statistics of a batch, beside the running averages."""
        like = next((t for t in (self.running_mean, self.weight) if t is not None), torch.empty(0))
        # Of the batch so far; no part of the state, as batches end before anybody saves it.
        each = (self.num_features,)
        for name, shape in ("batch_mean", each), ("batch_squares", each), ("batch_count", ()):
            self.register_buffer(name, like.detach().new_zeros(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [rows, channels, ...] normalised."""
        if not self.training or not self.track_running_stats:
            return super().forward(x)
        with torch.no_grad():
            if len(x):  # of no rows there is neither a mean nor a variance
                self._count(x)
            if ends_batch():
                self._commit()
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected [rows, channels, ...], got {tuple(input.shape)}")

    def _count(self, x: Tensor) -> None:
        """Add a microbatch to the batch's statistics: sums of squares around the mean so far."""
        self._check_input_dim(x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        variance, mean = torch.var_mean(x.to(self.batch_mean.dtype), dims, correction=0)
        count = x.numel() // x.shape[1]
        total = self.batch_count + count
        distance = mean - self.batch_mean
        self.batch_squares += variance * count + distance**2 * (self.batch_count * count / total)
        self.batch_mean += distance * (count / total)
        self.batch_count.copy_(total)

    def _commit(self) -> None:
        """Let the running averages count the batch, with its unbiased variance as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(self.batch_mean, share)
        self.running_var.lerp_(self.batch_squares / (self.batch_count - 1), share)
        self.forget_batch()

    def forget_batch(self) -> None:
        """Drop what the batch so far has added."""
        for tensor in self.batch_mean, self.batch_squares, self.batch_count:
            tensor.zero_()


def forget_batch(module: nn.Module) -> None:
    """Drop what a batch that failed has left in every :class:`DeferredBatchNorm` of ``module``."""
    for layer in module.modules():
        if isinstance(layer, DeferredBatchNorm):
            layer.forget_batch()


def convert_batch_norm(module: nn.Module) -> nn.Module:
    """Make every batch norm in ``module`` a :class:`DeferredBatchNorm`, in place, and return it.

    Raises:
        TypeError: a batch norm computes otherwise than PyTorch's.
    """
    for name, norm in module.named_modules():
        if not isinstance(norm, _BatchNorm) or isinstance(norm, DeferredBatchNorm):
            continue
        if type(norm).forward is not _BatchNorm.forward:
            raise TypeError(
                f"{name or 'the module'} is a {type(norm).__name__}, which computes otherwise than "
                f"PyTorch's batch norm: put nn.BatchNorm2d in its place, or leave out "
                f"deferred_batch_norm"
            )
        norm.__class__ = DeferredBatchNorm
        cast(DeferredBatchNorm, norm).begin()
    return module
