"""Weight versions with a mitigation: what passes read lies in slots of its own, never in place.

With weight stashing each slot has a twin, which holds what is predicted of the slot's version, made
when the version is.  Without, there is one slot in which the newest weights live and one beside it,
which is written before each pass: whatever is under way reads it, and so a backward, too, finds
there what it is to read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pipekit.engine.updates.weight_versions import WeightVersions
from pipekit.engine.updates.weights import Gradients
from pipekit.schedules import Op, Step
from pipekit.staleness import Mitigation, Pass, Update, Weight

_PREDICTED = "\0predicted"
"""Behind the names of weights in a checkpoint: what a forward reads in their place."""


class StageMitigation(NamedTuple):
    """A mitigation and where it is applied; it can be sent to another process."""

    rule: Mitigation
    stage: int
    stages: int
    delay: int  # in updates, as of :class:`Pass`
    stashing: bool  # whether a backward reads the version of its forward


class MitigatedWeights(WeightVersions):
    """The weights of one stage, with what a mitigation does about stale ones."""

    def __init__(self, mitigation: StageMitigation, *versions: Any) -> None:
        super().__init__(*versions)
        self._at, self._rule = mitigation, mitigation.rule
        self._predicts = self._rule.overrides("weights")
        self._corrects = self._rule.overrides("gradient")
        self._follows = self._rule.overrides("updated")
        self._memory: list[dict[str, Tensor]] = [{} for _ in range(self.trained)]
        self._updates = 0  # in all runs
        self._versions: dict[int, int] = {}  # by slot, in updates of this run
        self._real = 0  # slots without the twins
        # Of the updates to come, the slot that their backwards have read, and its version.
        self._read: dict[int, tuple[int, int]] = {}
        self._restored: list[Tensor] | None = None  # what forwards read, from a checkpoint
        self._update = Update(*mitigation[1:4], 0, 0, 0)  # the last one
        if self.optimizer:
            self._rule.require(self.optimizer)

    @property
    def kept_bytes(self) -> int:
        return sum(tensor.nbytes for memory in self._memory for tensor in memory.values())

    def prepare(self, slots: int) -> None:
        super().prepare(self._rule.slots(slots, self._at.stashing))
        self._real = slots
        self._read.clear()
        self._restored = None
        self._versions = {0: 0}
        self._predict_version(0)

    def read(self, step: Step, op: Op) -> Step:
        if op is Op.BACKWARD:
            read, update = (step.slot, self._versions[step.slot]), step.update
            if self._read.setdefault(update, read) != read and self._corrects:
                raise ValueError(
                    f"{type(self._rule).__name__} corrects gradients that were taken at one "
                    f"version, and update {update} of stage {self._at.stage} sums several: use "
                    f"PipeDream or 2BW"
                )
        if not self._predicts:
            return step
        if not self._at.stashing and op is not Op.BACKWARD_WEIGHT:
            again = self._restored if op is Op.FORWARD else None
            self._write(self._real, again or self._predicted(step.slot, op))
        return step._replace(slot=self._twin(step.slot))

    def weights(self, slot: int | None = None) -> dict[str, Tensor]:
        """Return the trained parameters by name, and what forwards read in their place."""
        named = super().weights(slot)
        if not self._predicts or self.optimizer is None:
            return named
        real = self._newest if slot is None else slot
        if self._at.stashing:
            predicted: Sequence[Tensor] = self.tensors(self._twin(real))
        else:
            predicted = self._restored or self._predicted(real, Op.FORWARD)
        return named | {
            name + _PREDICTED: tensor for name, tensor in zip(named, predicted, strict=True)
        }

    def restore(self, slot: int, weights: Mapping[str, Tensor], version: int) -> None:
        """Write a version into ``slot`` that an earlier run has made, and what was predicted."""
        super().restore(slot, weights, version)
        self._versions[slot] = version
        names = [name for name, *_ in self.names.values()]
        saved = [weights[n + _PREDICTED] for n in names if n + _PREDICTED in weights]
        device = self.parameters[slot][0].device if self.trained else None
        self._restored = None
        if not saved:
            self._predict_version(slot)
        elif self._at.stashing:
            self._write(self._twin(slot), [tensor.to(device) for tensor in saved])
        else:
            self._restored = [tensor.to(device) for tensor in saved]

    def update(self, slot: int, gradients: Gradients) -> None:
        newest = self._versions[self._newest]
        read, version = self._read.pop(newest + 1, (self._newest, newest))
        _, stage, stages, delay, _ = self._at
        self._update = Update(stage, stages, delay, version, newest, self._updates)
        if self._corrects and self.optimizer:
            if self._versions[read] != version:
                raise ValueError(
                    f"{type(self._rule).__name__} compares weights that this schedule has "
                    f"overwritten by then: use PipeDream or 2BW on one worker a stage"
                )
            gradients = [*gradients]
            with torch.no_grad():
                for place, weight in enumerate(self._views(self.tensors(read))):
                    if (given := gradients[place]) is not None:
                        made = self._rule.gradient(self._update, weight, given)
                        gradients[place] = self._whole("gradient", made, given)
        super().update(slot, gradients)
        self._updates += 1
        self._versions[slot] = newest + 1
        self._restored = None
        self._predict_version(slot)

    def step(self, optimizer: Optimizer) -> None:
        """Take the optimizer's step, at the mitigation's rate, and correct what it has made."""
        newest, at = self._optimized, self._update
        before = [parameter.detach().clone() for parameter in newest] if self._follows else []
        factor = self._rule.rate(at)
        rates = [group["lr"] for group in optimizer.param_groups]
        if factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        super().step(optimizer)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if self._follows:
            with torch.no_grad():
                for parameter, weight, old in zip(newest, self._views(before), before, strict=True):
                    made = self._rule.updated(at, weight, old)
                    if made is not weight.newest:
                        parameter.copy_(self._whole("updated", made, old))

    def state_dict(self) -> dict[str, Any]:
        """Return what the mitigation keeps, by the names of the parameters."""
        names = [name for name, *_ in self.names.values()]
        return {
            "rule": repr(self._rule),
            "updates": self._updates,
            "versions": dict(self._versions),
            "memory": dict(zip(names, self._memory, strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what an earlier run has kept; there may be more parameters in it."""
        self._updates, self._versions = state["updates"], dict(state["versions"])
        for own, (name, *_) in zip(self._memory, self.names.values(), strict=True):
            device = self.newest.get_parameter(name).device
            own.update({key: t.to(device) for key, t in state["memory"][name].items()})

    def _twin(self, slot: int) -> int:
        return self._real + slot if self._at.stashing else self._real

    def _predict_version(self, slot: int) -> None:
        """With stashing, write what forwards and backwards will read in place of a new version."""
        if self._predicts and self._at.stashing:
            self._write(self._twin(slot), self._predicted(slot, Op.FORWARD))

    @torch.no_grad()
    def _predicted(self, slot: int, op: Op) -> list[Tensor]:
        _, stage, stages, delay, _ = self._at
        newest = self._versions[self._newest]
        at = Pass(op, stage, stages, delay, self._versions[slot], newest)
        views = self._views(self.tensors(slot))
        return [self._whole("weights", self._rule.weights(at, w), w.read) for w in views]

    @torch.no_grad()
    def _write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        for own, tensor in zip(self.tensors(slot), tensors, strict=True):
            own.copy_(tensor)

    def _whole(self, answer: str, made: Tensor, like: Tensor) -> Tensor:
        """Return what the rule answers; one number would be copied into a whole parameter."""
        shape = getattr(made, "shape", None)
        if shape == like.shape:
            return made
        what = type(made).__name__ if shape is None else f"a tensor of shape {[*shape]}"
        raise ValueError(
            f"{type(self._rule).__name__}.{answer} returned {what} for a parameter of shape "
            f"{[*like.shape]}: let it return a tensor of the parameter's own shape"
        )

    def _views(self, read: Sequence[Tensor]) -> list[Weight]:
        """Return what the rule is told of each parameter."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        state: Mapping[Tensor, dict[str, Any]] = optimizer.state
        options = {p: group for group in optimizer.param_groups for p in group["params"]}
        return [
            Weight(old, new, optimizer, state.get(new, {}), options[new], memory)
            for old, new, memory in zip(read, self._optimized, self._memory, strict=True)
        ]
