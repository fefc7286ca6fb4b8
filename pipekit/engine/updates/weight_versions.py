"""The weight versions of a stage, and the optimizer that makes the next one.

A version is a set of leaf tensors in a slot: an instance of the stage's layers with parameters of
its own (running a module costs nothing extra; ``functional_call`` costs 40 us a pass).  An update
writes the slot that the schedule names.  The optimizer has parameters of its own for good, whose
memory is the slot's, so that autograd's version check, which cannot know what the schedule's check
has proved, does not see the edit.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from pipekit.engine.updates.optimizer_state import OrderedGroups, original_names
from pipekit.engine.updates.weights import Bucket, Gradients, parameter_buckets
from pipekit.layers.module_state import to_training, trained, twin
from pipekit.schedules import Op, Step

OptimizerFactory = Callable[[Any], Optimizer]
"""From a list of parameters, or of groups of them, to their optimizer."""
LRSchedulerFactory = Callable[[Optimizer], LRScheduler]


class WeightVersions:
    """The weights of one stage, in one or several slots."""

    def __init__(
        self,
        layers: nn.Sequential,
        optimizer: OptimizerFactory,
        lr_scheduler: LRSchedulerFactory | None,
        groups: OrderedGroups | None = None,
        steps_lr: bool = True,
        copies: Collection[int] = (),
    ) -> None:
        self.modules = [layers]  # of each slot
        self.parameters = [trained(layers)]  # the trained ones of each slot
        self._newest = 0
        self._owner: dict[int, int] = {}
        self._set_aside: dict[int, Gradients] = {}
        self._optimized = [nn.Parameter(p.data) for p in self.parameters[0]]
        self.optimizer = self._make(optimizer, groups) if self._optimized else None
        self.trained = len(self._optimized)  # how many parameters the optimizer updates
        self._summed = [n for n in range(self.trained) if n not in copies]
        self._steps_lr = steps_lr
        self.lr_scheduler = (
            lr_scheduler(self.optimizer) if lr_scheduler and self.optimizer else None
        )
        if self.lr_scheduler is not None and not hasattr(self.lr_scheduler, "state_dict"):
            raise TypeError(
                f"{type(self.lr_scheduler).__name__} has no state_dict(), from which the scheduler "
                f"of a stage is made again: let it inherit from torch's LRScheduler"
            )
        if steps_lr and isinstance(self.lr_scheduler, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau waits for a metric: build the pipeline with lr_step='call', and "
                "call pipeline.step_lr(metric) after each train()"
            )

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept besides weights, gradients and the optimizer's state."""
        return 0

    @property
    def newest(self) -> nn.Sequential:
        """The layers with the newest weights."""
        return self.modules[self._newest]

    @property
    def names(self) -> dict[nn.Parameter, list[str]]:
        """The names in the layers of each parameter of the optimizer, all of one that is shared."""
        names: dict[nn.Parameter, list[str]] = defaultdict(list)
        for name, parameter in self.newest.named_parameters(remove_duplicate=False):
            names[parameter].append(name)
        trained = zip(self._optimized, self.parameters[self._newest], strict=True)
        return {own: names[parameter] for own, parameter in trained}

    def buckets(self) -> list[Bucket]:
        """Return how the gradients travel between the workers of a stage."""
        return parameter_buckets({n: self._optimized[n] for n in self._summed})

    def watch(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with a trained parameter's number when a backward added a gradient."""
        hooks = [
            parameters[number].register_post_accumulate_grad_hook(lambda _, n=number: listener(n))
            for parameters in self.parameters
            for number in self._summed
        ]

        def unwatch() -> None:
            for hook in hooks:
                hook.remove()

        return unwatch

    def tensors(self, slot: int) -> list[Tensor]:
        """Return the trained parameters of a slot, edits of which autograd does not see."""
        return [parameter.data for parameter in self.parameters[slot]]

    def weights(self, slot: int | None = None) -> dict[str, Tensor]:
        """Return the trained parameters of a slot, or of the newest version, by name."""
        layers = self.newest if slot is None else self.modules[slot]
        return {name: p for name, p in layers.named_parameters() if p.requires_grad}

    def prepare(self, slots: int) -> None:
        """Make ready for a run with ``slots`` slots."""
        each: list[list[Any]] = [self.modules, self.parameters]
        for items in each:
            items.insert(0, items.pop(self._newest))
            del items[slots:]
        self._newest = 0
        while len(self.modules) < slots:  # buffers and frozen parameters are shared
            frozen = (p for p in self.newest.parameters() if not p.requires_grad)
            self.modules.append(twin(self.newest, frozen))
            self.parameters.append(trained(self.modules[-1]))
        for module in self.modules:
            to_training(module)
            module.zero_grad()  # of a batch that a run has given up
        self._owner.clear()
        self._set_aside.clear()

    def read(self, step: Step, op: Op) -> Step:
        """Return a step with the slot that it reads in place of the one that the table names.

        The ``op`` is FORWARD, also of a recomputation, BACKWARD or BACKWARD_WEIGHT.
        """
        return step

    def accumulate(self, slot: int, update: int) -> None:
        """Direct the gradients of the next backward on ``slot`` into ``update``'s sum."""
        owner = self._owner.get(slot)
        if owner != update:
            if owner is not None:
                self._set_aside[owner] = self._taken(owner, [slot], range(self.trained))
            self._owner[slot] = update

    def gradients(self, update: int) -> Gradients:
        """Return, and let go of, the sum of ``update``'s gradients, one a trained parameter."""
        taken = self.take(update, range(self.trained))
        self._set_aside.pop(update, None)
        for slot, owner in [*self._owner.items()]:
            if owner == update:
                del self._owner[slot]
        return taken

    def take(self, update: int, parameters: Iterable[int]) -> Gradients:
        """Return, and let go of, the sums of ``update``'s gradients of some trained parameters."""
        slots = [slot for slot, owner in self._owner.items() if owner == update]
        return self._taken(update, slots, parameters)

    def all_gradients(self) -> Iterator[Tensor]:
        held = [p.grad for group in (*self.parameters, self._optimized) for p in group]
        for gradient in chain(held, *self._set_aside.values()):
            if gradient is not None:
                yield gradient

    def update(self, slot: int, gradients: Gradients) -> None:
        """Write the next version into ``slot``: one optimizer step from the newest version."""
        if self.optimizer is None:
            return
        self.skip(slot)
        for own, gradient in zip(self._optimized, gradients, strict=True):
            own.grad = gradient
        self.step(self.optimizer)
        for own in self._optimized:
            own.grad = None
        if self.lr_scheduler is not None and self._steps_lr:
            self.lr_scheduler.step()

    def step(self, optimizer: Optimizer) -> None:
        """Take the optimizer's step from the newest version, in place."""
        optimizer.step()

    @torch.no_grad()
    def skip(self, slot: int) -> None:
        """Make ``slot`` the next version as a copy of the newest, its memory the optimizer's."""
        if self.optimizer is None or slot == self._newest:
            return
        for own, parameter in zip(self._optimized, self.parameters[slot], strict=True):
            parameter.data.copy_(own)
            own.data = parameter.data
        self._newest = slot

    @torch.no_grad()
    def restore(self, slot: int, weights: Mapping[str, Tensor], version: int) -> None:
        """Write ``version`` into ``slot``, which an earlier run has made."""
        self.skip(slot)
        if self.optimizer is not None:
            for own, (name, *_) in self.names.items():
                if name in weights:  # else it was frozen, and is the same in all versions
                    own.copy_(weights[name])

    def _make(self, optimizer: OptimizerFactory, groups: OrderedGroups | None) -> Optimizer | None:
        """Return the stage's optimizer; None: the user's function takes none of its parameters."""
        given = {*map(id, self._optimized)}
        parameters: list[Any] = list(self._optimized)
        if groups:
            names = original_names(self.newest)
            owners = zip(self.parameters[0], self._optimized, strict=True)
            parameters = groups.grouped({names[p]: own for p, own in owners})
        try:
            made = optimizer(parameters)
        except ValueError as error:
            if "empty parameter list" in str(error):
                return None
            raise
        except AttributeError as error:
            if "'list' object" not in str(error):
                raise
            raise TypeError(
                "the optimizer's function gets a list of parameters, not the model: lambda "
                "parameters: torch.optim.SGD(parameters, lr=0.1), and Updates(groups=...) for "
                "options by a parameter's name"
            ) from error
        require_usable(made)
        if any(id(p) not in given for group in made.param_groups for p in group["params"]):
            raise ValueError(
                "the optimizer must be made from the parameters that the function is given, e.g. "
                "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
            )
        return made

    def _taken(self, update: int, slots: Sequence[int], parameters: Iterable[int]) -> Gradients:
        """Take what is set aside for ``update`` plus what lies in ``slots``."""
        aside, taken = self._set_aside.get(update), Gradients()
        for number in parameters:
            total = None
            if aside is not None:
                total, aside[number] = aside[number], None
            for slot in slots:
                p = self.parameters[slot][number]
                total, p.grad = _add(total, p.grad), None
            taken.append(total)
        return taken


def require_usable(optimizer: Optimizer) -> None:
    """Refuse an optimizer without a state that can be read, or whose step needs a closure.

    The one is a TypeError, say for a wrapper, the other a ValueError, say for LBFGS.
    """
    try:
        if missing := {"state", "param_groups"} - optimizer.state_dict().keys():
            raise AttributeError(f"its state_dict() lacks {', '.join(sorted(missing))}")
    except AttributeError as error:
        raise TypeError(
            f"the optimizer is incomplete ({error}): let its class inherit from "
            f"torch.optim.Optimizer, and call super().__init__(parameters, {{...}})"
        ) from error
    # Of the class: a scheduler replaces the method of the object.
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()
    varied = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(each.default is each.empty and each.kind not in varied for each in parameters):
        raise NeedsClosure.of(optimizer)


class NeedsClosure(ValueError):
    """An optimizer's step evaluates the model again."""

    @classmethod
    def of(cls, optimizer: Optimizer) -> Self:
        return cls(
            f"{type(optimizer).__name__}'s step needs a closure, which evaluates the model again "
            f"in the middle of an update, and no Pipeline can: use another optimizer, or a "
            f"PipelinedModule in a loop of your own"
        )


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a.add_(b)
