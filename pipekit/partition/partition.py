"""What a pipeline knows of a model: its stages, and what passes between them.

Of weights that layers of several stages share, every stage has a copy.  Each begins its backwards
with the gradient that the later stages have added up: as in the unsplit model, all is summed from
the last use to the first.
"""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from torch import Tensor, nn

from pipekit.layers.module_state import named_buffers, trained
from pipekit.layers.skips import Name, Skip
from pipekit.partition.probe import Probe
from pipekit.plans import stage_of_layers
from pipekit.schedules.lowering.steps import FIRST_TIE


class Tie(NamedTuple):
    """Trained parameters of which the same stages have copies."""

    stages: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]  # by stage: where they stand among its trained parameters

    def members(self, stage_workers: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the workers that have a copy, or several, given those of each stage."""
        workers = (worker for stage in self.stages for worker in stage_workers[stage])
        return tuple(dict.fromkeys(workers))


class TieWay(NamedTuple):
    """A way on which the gradient of a shared parameter goes back, from stage late to early."""

    early: int
    late: int
    original: int  # where it stands among the early stage's trained parameters
    copy: int  # and among the late one's


def tie_ways(ties: Iterable[Tie]) -> Iterator[TieWay]:
    """Yield the ways between each stage of a tie and the next, for each of its parameters."""
    for tie in ties:
        for (early, originals), (late, copies) in pairwise(
            zip(tie.stages, tie.places, strict=True)
        ):
            for places in zip(originals, copies, strict=True):
                yield TieWay(early, late, *places)


def tie_ends(ties: Iterable[Tie]) -> list[tuple[int, int]]:
    """Return the stages between which the gradient of each shared parameter goes back."""
    return [(way.early, way.late) for way in tie_ways(ties)]


Trained = Callable[[nn.Module], list[nn.Parameter]]


def find_ties(stages: Iterable[nn.Module], trained: Trained = trained) -> tuple[Tie, ...]:
    """Return what stages share of what is trained."""
    places = defaultdict[nn.Parameter, dict[int, int]](dict)
    for index, stage in enumerate(stages):
        for place, parameter in enumerate(trained(stage)):
            places[parameter][index] = place
    ties = defaultdict[tuple[int, ...], list[tuple[int, ...]]](list)
    for where in places.values():
        if len(where) > 1:
            ties[tuple(where)].append(tuple(where.values()))
    return tuple(Tie(s, tuple(zip(*each, strict=True))) for s, each in ties.items())


@dataclass(frozen=True, kw_only=True)
class PartitionStage:
    """A stage: modules in order, whose tensors have their names of the unsplit model.

    ``originals`` are the places among its trained parameters of those of which a later stage has a
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
    numbers: Sequence[int | None] = ()  # of trained parameters in the whole model; None: a copy
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
        originals, copies = dict[int, int](), dict[int, int]()
        for number, way in enumerate(tie_ways(ties)):
            if way.early == self.index:
                originals[FIRST_TIE - number] = way.original
            elif way.late == self.index:
                copies[FIRST_TIE - number] = way.copy
        return replace(self, originals=originals, copies=copies)


@dataclass(frozen=True)
class Partition:
    """A model cut into stages, the skip connections and the trained parameters that they share."""

    stages: tuple[PartitionStage, ...]
    skips: tuple[Skip, ...]
    ties: tuple[Tie, ...]

    def separated(self) -> "Partition":
        """Return the same with parameters of its own for every stage: copies of what is shared."""
        known, stages = set[nn.Parameter](), []
        for stage in self.stages:
            own = set(stage.module.parameters())
            if not known.isdisjoint(own):
                stage = replace(stage, module=copy.deepcopy(stage.module))
            stages.append(stage)
            known |= own
        return replace(self, stages=tuple(stages))

    def retrained(self, modules: Sequence[nn.Module], trained: Trained = trained) -> "Partition":
        """Return the same with what is ``trained`` of modules that share what the model's share."""
        ties, known, stages = find_ties(modules, trained), dict[nn.Parameter, int](), []
        for stage, module in zip(self.stages, modules, strict=True):
            parameters = trained(module)
            numbers = [None if p in known else known.setdefault(p, len(known)) for p in parameters]
            stages.append(replace(stage, numbers=numbers).tied(ties))
        return replace(self, stages=tuple(stages), ties=ties)


def partition(
    model: nn.Sequential, balance: Sequence[int], tried: Probe, skips: Sequence[Skip] = ()
) -> Partition:
    """Cut a model; the layers are its own, ``skips`` those between its stages."""
    require_handed_on_within(balance, tried.handed_on)
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
    stage_of = stage_of_layers(balance) if pairs else []
    for source, reader in sorted(pairs):
        if stage_of[source] != stage_of[reader]:
            raise ValueError(
                f"layer {reader} reads a tensor that layer {source} has left in Python, in a "
                f"dict, list or attribute that they share, edits one of several that it gets in "
                f"one memory, or gets a sparse or nested one, and they are in stages "
                f"{stage_of[reader]} and {stage_of[source]}, between which go only dense tensors "
                f"that layers return, in memory of their own: choose a balance that keeps them in "
                f"one stage, return a clone from layer to layer, or stash and pop it "
                f"(pipekit.layers.skips)"
            )


def require_unshared(
    model: nn.Sequential, balance: Sequence[int], edited: Iterable[tuple[int, str]] = ()
) -> None:
    """Raise ValueError if stages share a buffer or an edited weight: nobody keeps copies equal."""
    single = dict.fromkeys(model.buffers(), "buffer")
    weights = (model[layer].get_parameter(name) for layer, name in edited)
    single |= dict.fromkeys(weights, "weight, which a forward edits,")
    owner: dict[Tensor, int] = {}
    for stage, layers in enumerate(cut(model, balance)):
        for name, tensor in chain(layers.named_buffers(), layers.named_parameters()):
            if tensor in single and owner.setdefault(tensor, stage) != stage:
                raise ValueError(
                    f"stages {owner[tensor]} and {stage} share the {single[tensor]} {name!r}: "
                    f"choose a balance that keeps the layers that share it in one stage"
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
