"""What enters and leaves stages, and the two ends of a pipeline."""

from array import array
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pipekit.devices import is_accelerator, to_device
from pipekit.engine.config import Loss, RunConfig
from pipekit.engine.feed import Feed
from pipekit.layers.pass_state import autocast
from pipekit.plans import Recompute
from pipekit.schedules import Step
from pipekit.trees import Tree, tree_map


class StageIO(NamedTuple):
    """Activations into or out of a stage."""

    main: Tree  # from the stage before, or to the next one; () for a microbatch without rows
    skips: dict[int, Tensor]  # by number of the skip connection, without those that are None


class StageGradients(NamedTuple):
    """The existing gradients of a :class:`StageIO`."""

    main: dict[int, Tensor]  # by number among the differentiable tensors
    skips: dict[int, Tensor]  # by number of the skip connection, or of a shared weight


class Target(NamedTuple):
    """The loss of the last stage's output, its target, and the microbatch's weight in it."""

    loss: Loss
    target: Any
    weight: float


class StageRuntime(Protocol):
    """A stage that can run the passes of a microbatch.

    Each pass is that of a ``step``: on its microbatch, with the weights in its slot, and with the
    gradients of the weights for its update.
    """

    recompute: Recompute  # which microbatches keep only their inputs until :meth:`run_again`

    def forward(self, step: Step, x: StageIO, target: Target | None) -> StageIO:
        """Return the output for ``x``, cut from the graph; on the last stage, the weighted loss.

        ``x`` has a leading dimension of rows; ``target`` is None on all stages but the last.
        """

    def run_again(self, step: Step) -> StageIO:
        """Run again a forward whose graph was not kept; return its output."""

    def backward(self, step: Step, gradients: StageGradients | None) -> StageGradients:
        """Add a pending microbatch's gradients to those of the weights; return the input's.

        ``gradients`` are those of the output; None if that is a loss, for ones.  A split backward
        leaves the weights' for :meth:`backward_weight`.  ValueError is raised if a layer draws
        random numbers in its backward.
        """

    def backward_weight(self, step: Step) -> None:
        """Add the microbatch's gradients to those of the weights, after a split backward."""


class LossLog:
    """(microbatch, weighted loss) in the order of their arrival; 8 bytes each, once known."""

    def __init__(self) -> None:
        self._numbers, self._losses = list[range](), array("d")
        self._issued: list[tuple[int, Tensor]] = []  # on accelerators, for which nobody waits yet

    def add(self, microbatch: int, loss: Tensor | float) -> None:
        """Add a loss, which an accelerator may still be computing."""
        if isinstance(loss, Tensor) and is_accelerator(loss.device):
            self._issued.append((microbatch, loss))
        else:
            last = self._numbers.pop() if self._numbers else range(microbatch, microbatch)
            step = microbatch - last[-1] if last else 1
            if step > 0 and (len(last) < 2 or step == last.step):
                self._numbers.append(range(last.start, microbatch + 1, step))
            else:
                self._numbers += [last, range(microbatch, microbatch + 1)]
            self._losses.append(float(loss))

    def wait(self) -> None:
        issued, self._issued = self._issued, []
        for microbatch, loss in issued:
            self.add(microbatch, loss.item())

    def __iter__(self) -> Iterator[tuple[int, float]]:
        self.wait()
        return zip(chain(*self._numbers), self._losses, strict=True)


class PipelineIO(Protocol):
    """The two ends of a pipeline."""

    def input(self, microbatch: int) -> Tree:
        """Return the first stage's input; () for a microbatch without rows."""

    def target(self, microbatch: int) -> Target | None:
        """Return the last stage's target, or None for the plain output."""

    def output(self, microbatch: int, output: Tree, /) -> None:
        """Take the last stage's output, or its weighted loss."""


class GradientsIO(Protocol):
    """The two ends of a pipeline whose output is not a loss, and whose input has gradients."""

    def output_gradients(self, microbatch: int) -> StageGradients:
        """Return the gradients of the last stage's output."""

    def input_gradients(self, microbatch: int, gradients: StageGradients) -> None:
        """Take the gradients of the first stage's input."""


class TrainingIO:
    """The ends of a pipeline that trains: batches come in, and losses go out."""

    def __init__(self, config: RunConfig, feed: Feed) -> None:
        self._config, self._feed, self.input = config, feed, feed.input
        self.outputs: dict[int, Tree] = {}  # by microbatch, on the host, if they are kept
        self.losses = LossLog()
        self.output = self.losses.add

    def target(self, microbatch: int) -> Target:
        target, weight = self._feed.target(microbatch)
        loss = self._config.loss
        if self._config.watch.outputs or self._config.updates.finite:
            loss = partial(self._watched, microbatch)
        return Target(loss, target, weight)

    def _watched(self, microbatch: int, output: Tree, target: Tree) -> Tensor:
        if self._config.watch.outputs:
            self.outputs[microbatch] = tree_map(lambda t: t.detach().to("cpu", copy=True), output)
        value = self._config.loss(output, target)
        if self._config.updates.finite and not bool(value.isfinite().all()):
            raise FloatingPointError(
                f"the loss is {value.tolist()}: its batch has changed no weights (finite=True)"
            )
        return value


class EvaluationIO:
    """The ends of a pipeline that evaluates; the configured loss is any function."""

    def __init__(self, config: RunConfig, feed: Feed, device: torch.device) -> None:
        self._config, self._feed, self._device = config, feed, device
        self.input = feed.input
        self.results: list[tuple[int, Any]] = []  # (microbatch, value of the function)

    def target(self, microbatch: int) -> None:
        """Return None, for the plain output."""

    def output(self, microbatch: int, output: Tree) -> None:
        target, _ = self._feed.target(microbatch)
        there = to_device(target, self._device)
        with autocast(self._device, self._config.execution.autocast):
            self.results.append((microbatch, self._config.loss(output, there)))
