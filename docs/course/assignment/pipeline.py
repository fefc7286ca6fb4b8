"""Assignment: 1F1B with a flush, then PipeDream's weight stashing.

Replace each NotImplementedError by code, then run ``pytest`` in this folder: your weights must
equal those of sequential training, and of PipeDream's equation, to the bit. Tasks are pairs:
``("F", k)`` and ``("B", k)`` are the passes of microbatch ``k``, ``("U", t)`` makes weight version
``t``.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

Task = tuple[str, int]


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[Task]:
    """Return a stage's tasks for one batch: warm-up, then 1F1B, then the drain, and ``("U", 1)``.

    No stage may have more microbatches in flight than there are stages from it to the last.
    """
    # solution: part 1
    warm_up = min(stages - 1 - stage, microbatches)
    tasks = [("F", k) for k in range(warm_up)]
    for k in range(warm_up, microbatches):
        tasks += [("F", k), ("B", k - warm_up)]
    tasks += [("B", k) for k in range(microbatches - warm_up, microbatches)]
    return [*tasks, ("U", 1)]
    # end


def pipedream(stage: int, stages: int, minibatches: int) -> list[Task]:
    """Return a stage's tasks for all minibatches: as 1F1B, with an update after each backward."""
    # solution: part 3
    tasks: list[Task] = []
    for op, k in one_f_one_b(stage, stages, minibatches)[:-1]:
        tasks += [(op, k), ("U", k + 1)] if op == "B" else [(op, k)]
    return tasks
    # end


class Stage:
    """Some layers, and the tensors that wait for the backward of each microbatch."""

    def __init__(self, layers: nn.Sequential, lr: float) -> None:
        self.layers, self.optimizer = layers, torch.optim.SGD(layers.parameters(), lr)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # by microbatch: input and output

    def forward(self, microbatch: int, x: Tensor) -> Tensor:
        """Return the output, and keep the backward's tensors; x comes without a graph."""
        # solution: part 2
        x = x.requires_grad_()
        y = self.layers(x)
        self.kept[microbatch] = x, y
        return y.detach()
        # end

    def backward(self, microbatch: int, gradient: Tensor) -> Tensor:
        """Add to the weights' gradients; return that of the input, and keep nothing more."""
        # solution: part 2
        x, y = self.kept.pop(microbatch)
        torch.autograd.backward(y, gradient)
        assert x.grad is not None
        return x.grad
        # end

    def update(self) -> None:
        """Make the next weight version of the gradients that were added up."""
        # solution: part 2
        self.optimizer.step()
        self.optimizer.zero_grad()
        # end

    def state(self) -> dict[str, Tensor]:
        """Return the newest weights, by their names in the layers."""
        return dict(self.layers.named_parameters())


class StashingStage:
    """A stage whose backward reads the weights that its forward has read.

    ``functional_call(layers, weights, (x,))`` runs layers with other weights than their own.
    An update without momentum is ``torch.add(weight, gradient, alpha=-lr)``, not in place.
    """

    def __init__(self, layers: nn.Sequential, lr: float) -> None:
        self.layers, self.lr = layers, lr
        self.weights = {name: each.detach().clone() for name, each in layers.named_parameters()}
        self.gradients: dict[str, Tensor] = {}
        self.stash: dict[int, tuple[dict[str, Tensor], Tensor, Tensor]] = {}  # by minibatch

    def forward(self, microbatch: int, x: Tensor) -> Tensor:
        """As in :class:`Stage`, with the newest weights, which are stashed."""
        # solution: part 4
        x = x.requires_grad_()
        weights = {name: each.detach().requires_grad_() for name, each in self.weights.items()}
        y = functional_call(self.layers, weights, (x,))
        self.stash[microbatch] = weights, x, y
        return y.detach()
        # end

    def backward(self, microbatch: int, gradient: Tensor) -> Tensor:
        """As in :class:`Stage`, at the stashed weights, which are dropped."""
        # solution: part 4
        weights, x, y = self.stash.pop(microbatch)
        *own, to_input = torch.autograd.grad(y, [*weights.values(), x], gradient)
        self.gradients = dict(zip(weights, own, strict=True))
        return to_input
        # end

    def update(self) -> None:
        """Make the next version of the newest weights, not of the stashed ones."""
        # solution: part 4
        for name, gradient in self.gradients.items():
            self.weights[name] = torch.add(self.weights[name], gradient, alpha=-self.lr)
        # end

    def state(self) -> dict[str, Tensor]:
        """Return the newest weights, by their names in the layers."""
        return self.weights


def run(
    stages: Sequence[Stage | StashingStage],
    orders: Sequence[Sequence[Task]],
    inputs: Sequence[Tensor],
    loss: Callable[[int, Tensor], Tensor],
) -> None:
    """Run each stage's tasks in order, each as soon as its message is there (given).

    Args:
        stages: of the model, in order.
        orders: the tasks of each.
        inputs: of the first stage, by microbatch.
        loss: of a microbatch's number and the last stage's output.
    """
    last, done = len(stages) - 1, [0] * len(stages)
    activations = {(0, k): each for k, each in enumerate(inputs)}
    gradients: dict[tuple[int, int], Tensor] = {}
    while done != [len(each) for each in orders]:
        before = list(done)
        for s, (stage, order) in enumerate(zip(stages, orders, strict=True)):
            if done[s] == len(order):
                continue
            op, k = order[done[s]]
            if op == "F" and (s, k) in activations:
                y = stage.forward(k, activations.pop((s, k)))
                activations[s + 1, k] = y
                if s == last:
                    y = activations.pop((s + 1, k)).requires_grad_()
                    (gradients[s, k],) = torch.autograd.grad(loss(k, y), y)
            elif op == "B" and (s, k) in gradients:
                gradients[s - 1, k] = stage.backward(k, gradients.pop((s, k)))
            elif op == "U":
                stage.update()
            else:
                continue
            done[s] += 1
        if done == before:
            waits = [
                order[n] if n < len(order) else None for n, order in zip(done, orders, strict=True)
            ]
            raise RuntimeError(f"every stage waits for ever; their next tasks are {waits}")
