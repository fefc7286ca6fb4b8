"""What a pipeline knows of a model: its stages, and what passes between them."""

from bisect import bisect
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from torch import nn

from pipekit.layers.module_state import named_buffers
from pipekit.layers.skips import Name, Skip, between, links
from pipekit.partition.probe import Probe
from pipekit.partition.ties import (
    Tie,
    Trained,
    find_ties,
    parameter_numbers,
    separated,
    tie_ways,
    trained,
)
from pipekit.schedules.lowering.steps import FIRST_TIE


@dataclass(frozen=True, kw_only=True)
class PartitionStage:
    """A stage: modules in order, whose tensors have their names of the unsplit model.

    ``numbers`` are those of its trained parameters in the unsplit model, None for the copy of an
    earlier stage's.  ``originals`` are the places among them of those of which a later stage has a
    copy, by the number on which the copy's gradient comes (:func:`pipekit.schedules.lower`), and
    ``copies`` those that are copies, by the number on which their gradient goes.
    """

    index: int
    module: nn.Sequential
    first_layer: int = 0
    edits_input: bool = False  # as ReLU(inplace=True) does
    edited_buffers: frozenset[str] | None = None  # names; None: perhaps all
    pops: Mapping[Name, int] = field(default_factory=dict)  # skips that lead here, with numbers
    stashes: Mapping[Name, int] = field(default_factory=dict)  # and from here
    numbers: Sequence[int | None] = ()
    originals: Mapping[int, int] = field(default_factory=dict)
    copies: Mapping[int, int] = field(default_factory=dict)

    def with_edits(self, tried: Probe) -> "PartitionStage":
        """Return the same, with what its layers have edited when they were tried."""
        buffers = named_buffers(self.module).items()
        edited = {*tried.edited_buffers.values()}  # tensors are equal here if they are the same
        return replace(
            self,
            edits_input=self.first_layer in tried.edited_inputs,
            edited_buffers=frozenset(n for n, each in buffers if each in edited),
        )

    def tied(self, ties: Iterable[Tie]) -> "PartitionStage":
        """Return the same, whose backwards pass on the gradients of what stages share."""
        ways = {FIRST_TIE - number: way for number, way in enumerate(tie_ways(ties))}
        return replace(
            self,
            originals={n: way.original for n, way in ways.items() if way.early == self.index},
            copies={n: way.copy for n, way in ways.items() if way.late == self.index},
        )


@dataclass(frozen=True)
class Partition:
    """A model cut into stages, the skip connections and the trained parameters that they share."""

    stages: tuple[PartitionStage, ...]
    skips: tuple[Skip, ...]
    ties: tuple[Tie, ...]

    def separated(self) -> "Partition":
        """Return the same with parameters of its own for every stage: copies of what is shared."""
        modules = separated([stage.module for stage in self.stages])
        pairs = zip(self.stages, modules, strict=True)
        return replace(self, stages=tuple(replace(stage, module=each) for stage, each in pairs))

    def retrained(self, modules: Sequence[nn.Module], trained: Trained = trained) -> "Partition":
        """Return the same with what is ``trained`` of modules that share what the model's share."""
        ties = find_ties(modules, trained)
        numbers = parameter_numbers(modules, trained)
        stages = (
            replace(stage, numbers=own).tied(ties)
            for stage, own in zip(self.stages, numbers, strict=True)
        )
        return replace(self, stages=tuple(stages), ties=ties)


def partition(model: nn.Sequential, balance: Sequence[int], tried: Probe) -> Partition:
    """Cut a model; the layers are its own."""
    require_handed_on_within(balance, tried.handed_on)
    skips = between(links(model), balance)
    modules = cut(model, balance)
    places = enumerate(zip(pairwise([0, *accumulate(balance)]), modules, strict=True))
    stages = (
        PartitionStage(
            index=index,
            module=module,
            first_layer=first,
            pops={skip.name: n for n, skip in enumerate(skips) if skip.destination == index},
            stashes={skip.name: n for n, skip in enumerate(skips) if skip.source == index},
        ).with_edits(tried)
        for index, ((first, _), module) in places
    )
    return Partition(tuple(stages), tuple(skips), ()).retrained(modules)


def require_handed_on_within(balance: Sequence[int], pairs: Collection[tuple[int, int]]) -> None:
    """Raise ValueError if a layer needs more of one in another stage than tensors it returns."""
    ends = [*accumulate(balance)]
    for source, reader in sorted(pairs):
        stages = bisect(ends, source), bisect(ends, reader)
        if stages[0] != stages[1]:
            raise ValueError(
                f"layer {reader} reads a tensor that layer {source} has left in Python, in a "
                f"dict, list or attribute that they share, or edits one of several that it gets in "
                f"one memory, and they are in stages {stages[1]} and {stages[0]}, between which "
                f"goes only what layers return, in memory of its own: choose a balance that keeps "
                f"them in one stage, return the tensor from layer to layer, as a clone, or stash "
                f"and pop it (pipekit.layers.skips)"
            )


def cut(layers: nn.Sequential, balance: Sequence[int]) -> list[nn.Sequential]:
    """Return stages of so many layers each; the layers are the model's own."""
    return [layers[first:behind] for first, behind in pairwise([0, *accumulate(balance)])]


def sequence_of(model: object) -> nn.Sequential:
    """Return an ``nn.Sequential``, or a list or tuple of modules, as the sequence of its layers."""
    if isinstance(model, (list, tuple)) and all(isinstance(layer, nn.Module) for layer in model):
        model = nn.Sequential(*model)
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"the model must be layers that run one after another, in an nn.Sequential or a list, "
            f"not {type(model).__name__}: pipekit.stages(model, example_batch) makes them of any "
            f"module"
        )
    if not len(model):
        raise ValueError("the model has no layers")
    hooks = model._forward_pre_hooks or model._forward_hooks or model._backward_hooks
    if type(model).forward is not nn.Sequential.forward or hooks:
        raise TypeError(
            f"{type(model).__name__} does more than its layers one after another, by a forward or "
            f"hooks of its own, which no stage would call: pipekit.stages(model, example_batch) "
            f"makes layers of it"
        )
    if type(model).__init__ is not nn.Sequential.__init__:  # which slices, too, would call
        return nn.Sequential(OrderedDict(model._modules))
    return model
