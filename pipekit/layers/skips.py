"""Skip connections: tensors that a layer leaves for a layer far behind it.

A model stays a plain sequence of layers, none of which hands on what is not its own.  The two ends
of a skip say so::

    class Down(Skippable):
        stashes = ("skip",)

        def forward(self, x: Tensor) -> Tensor:
            self.stash("skip", x)
            return F.max_pool2d(x, 2)


    class Up(Skippable):
        pops = ("skip",)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([F.interpolate(x, scale_factor=2), self.pop("skip")], dim=1)


    nn.Sequential(Down().isolate("level 1"), ..., Up().isolate("level 1"))

The whole model runs as any other.  A part of it runs in :class:`carrying`, by which a pipeline
sends each skip straight from its source to its destination (torchgpipe, section 3.3).
:func:`inlined` has them ride along with the main tensor instead.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, Self, cast

from torch import Tensor, nn

from pipekit.plans import stage_of_layers
from pipekit.trees import Tree

Name = str
"""A skip's name in the whole model: ``"namespace/name"``, or ``"name"`` outside any namespace."""


class Skippable(nn.Module):
    """A layer at an end of a skip connection; it adds nothing to ``state_dict()``."""

    stashes: tuple[str, ...] = ()  # names that each forward must :meth:`stash` once
    pops: tuple[str, ...] = ()  # names that each forward must :meth:`pop` once
    namespace: str = ""  # sets the names apart from those of other layers of this class
    namespaces: Mapping[str, str] = MappingProxyType({})  # likewise, of single names

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for attribute in ("stashes", "pops"):
            if isinstance(names := getattr(cls, attribute), str):
                raise TypeError(f"{cls.__name__}.{attribute} must be a tuple: ({names!r},)")

    def isolate(self, namespace: str, only: Iterable[str] | None = None) -> Self:
        """Put names into a namespace, so that the same block can be used again; return self.

        Args:
            namespace: anything but "".
            only: the names, as a layer has them that pops one skip and stashes another; by default
                all.

        Raises:
            ValueError: the layer does not declare one of the names.
        """
        if only is None:
            self.namespace = namespace
            return self
        chosen = [only] if isinstance(only, str) else list(only)
        if unknown := {*chosen} - {*self.stashes, *self.pops}:
            raise ValueError(
                f"{type(self).__name__} has no {min(unknown)!r} to isolate: it stashes "
                f"{self.stashes} and pops {self.pops}"
            )
        # A dict of plain strings, which can be pickled with the layer.
        self.namespaces = {**self.namespaces, **dict.fromkeys(chosen, namespace)}
        return self

    def stash(self, name: str, tensor: Tensor | None) -> None:
        """Leave a tensor for the layer that pops it, as it is: gradients flow through it.

        Args:
            name: one of :attr:`stashes`.
            tensor: of any shape; None says that there is nothing this time.

        Raises:
            ValueError: the layer does not declare it.
        """
        self._require_declared(name, "stashes")
        _thread.carrier.put(self.full(name), tensor)

    def pop(self, name: str) -> Tensor:
        """Take the tensor, or the None, that a layer before stashed; nobody can pop it again.

        Raises:
            ValueError: the layer does not declare it.
            LookupError: nothing was stashed.
        """
        self._require_declared(name, "pops")
        full = self.full(name)
        try:
            return cast(Tensor, _thread.carrier.take(full))
        except KeyError:
            raise LookupError(
                f"{type(self).__name__} pops {full!r}, which nothing has stashed: let a layer "
                f"before it stash that, or run a part of a model in carrying({{{full!r}: tensor}})"
            ) from None

    def full(self, name: str) -> Name:
        """Return what one of the layer's names is in the whole model."""
        namespace = self.namespaces.get(name, self.namespace)
        return f"{namespace}/{name}" if namespace else name

    def _require_declared(self, name: str, end: "End") -> None:
        declared, layer = getattr(self, end), type(self).__name__
        if name not in declared:
            raise ValueError(
                f"{layer} {end} {name!r} without declaring it: write "
                f"{end} = {(*declared, name)!r} in class {layer}"
            )


class carrying:
    """A context, in this thread, for the forward of some consecutive layers and their skips.

    Nothing that a failed layer left behind is seen outside; inner contexts see nothing of outer
    ones.

    Args:
        incoming: what layers before these stashed and these pop.
    """

    def __init__(self, incoming: Mapping[Name, Tree] = MappingProxyType({})) -> None:
        self._incoming = dict(incoming)
        # What these layers stashed and did not pop: tensors, or None.
        self.outgoing: dict[Name, Tree] = {}

    def __enter__(self) -> Self:
        self._outer = _thread.carrier
        _thread.carrier = self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.carrier = self._outer

    @property
    def under_way(self) -> dict[Name, Tree]:
        """What came in or was stashed, and was not popped."""
        return self._incoming | self.outgoing

    def stashed(self, name: Name) -> Tree:
        """Return what these layers have stashed.

        Raises:
            LookupError: they have not.
        """
        if name not in self.outgoing:
            raise LookupError(
                f"no layer has stashed {name!r} in this forward, which one declares and a later "
                f"stage pops: every forward must stash it, or stash({name.rpartition('/')[2]!r}, "
                f"None)"
            )
        return self.outgoing[name]

    def put(self, name: Name, tensor: Tensor | None) -> None:
        """Keep ``tensor`` under ``name`` until :meth:`take`."""
        if name in self.outgoing:
            # No pass stashes a name twice: the last one failed, and all of this is its own.
            self.outgoing.clear()
        self.outgoing[name] = tensor

    def take(self, name: Name) -> Tree:
        """Return a tensor and forget it; raise KeyError if there is none."""
        return (self.outgoing if name in self.outgoing else self._incoming).pop(name)


class _SkippingThread(threading.local):
    def __init__(self) -> None:
        self.carrier = carrying()  # outside any context: of whole models


_thread = _SkippingThread()


def call(layer: nn.Module, x: Tree, incoming: Mapping[Name, Tree]) -> tuple[Tree, dict[Name, Tree]]:
    """Return a layer's output, and the skips that are under way behind it.

    In place of None, which cannot be passed on, stands the empty tuple.

    Args:
        layer, x: the layer and its input.
        incoming: the skips that are under way before it; what it does not pop is handed on.
    """
    given = {name: None if isinstance(skip, tuple) else skip for name, skip in incoming.items()}
    with carrying(given) as carried:
        y = layer(x)
    return y, {name: () if skip is None else skip for name, skip in carried.under_way.items()}


def inlined(model: nn.Sequential) -> nn.Sequential:
    """Return the same layers, wrapped where skips are under way, to pass on (x, {name: skip}).

    It is the plain sequence that a pipeline without skip connections needs, which copies every skip
    from stage to stage (torchgpipe, section 3.3).

    Raises:
        ValueError: the skips do not match; see :func:`require_matched`.
    """
    layers = list(model)
    require_matched(layers)
    crossing = [skip for skip in links(layers) if skip.source != skip.destination]
    sequence: list[nn.Module] = []
    for number, layer in enumerate(layers):
        enters = any(skip.source < number <= skip.destination for skip in crossing)
        leaves = any(skip.source <= number < skip.destination for skip in crossing)
        sequence.append(_Inlined(layer, enters, leaves) if enters or leaves else layer)
    return nn.Sequential(*sequence)


class _Inlined(nn.Module):
    """A layer that takes and gives the skips that are under way, if there are any."""

    def __init__(self, layer: nn.Module, enters: bool, leaves: bool) -> None:
        super().__init__()
        self.layer, self.enters, self.leaves = layer, enters, leaves

    def forward(self, passed: Tree) -> Tree:
        x, skips = passed if self.enters else (passed, {})
        y, under_way = call(self.layer, x, skips)
        return (y, under_way) if self.leaves else y


class Skip(NamedTuple):
    """A skip connection.

    Attributes:
        name: in the whole model.
        source, destination: the layers, or the stages, that stash it and pop it.
    """

    name: Name
    source: int
    destination: int


def links(layers: Iterable[nn.Module]) -> list[Skip]:
    """Return the skips between layers, in the order of their destinations.

    An end may be a module anywhere within its layer.  Names with one end only are left out.
    """
    layers = list(layers)
    sources = _declared(layers, "stashes")
    found = [
        Skip(name, sources[name][-1], number)
        for name, numbers in _declared(layers, "pops").items()
        for number in numbers
        if name in sources
    ]
    return sorted(found, key=lambda skip: skip.destination)


def between(skips: Sequence[Skip], balance: Sequence[int]) -> list[Skip]:
    """Return the skips that go from one stage to another, with stages for ends.

    Args:
        skips: between layers, as :func:`links` gives them.
        balance: layers of each stage, in order.
    """
    stage_of = stage_of_layers(balance)
    crossing = (Skip(each.name, *(stage_of[end] for end in each[1:])) for each in skips)
    return [skip for skip in crossing if skip.source != skip.destination]


def require_matched(layers: Iterable[nn.Module]) -> None:
    """Refuse layers whose skips do not each have one source and, behind it, one destination.

    Raises:
        ValueError: a name is stashed twice, popped twice, never stashed, never popped, or popped
            before it is stashed; the message names the layers and says what to change.
    """
    layers = list(layers)
    titles = [f"layer {number} ({type(layer).__name__})" for number, layer in enumerate(layers)]
    sources, destinations = _declared(layers, "stashes"), _declared(layers, "pops")
    again = "give each pair of layers a namespace of its own by layer.isolate('...')"
    taken = f"the first pop takes the tensor away; {again}, or stash the tensor under two names"
    for name in sources | destinations:
        stashing = [titles[number] for number in sources.get(name, ())]
        popping = [titles[number] for number in destinations.get(name, ())]
        for end, named, advice in ("stashes", stashing, again), ("pops", popping, taken):
            if len(named) > 1:
                raise ValueError(
                    f"{name!r} is in {end} of both {named[0]} and {named[1]}: {advice}"
                )
        if not stashing:
            raise ValueError(
                f"{popping[0]} pops {name!r}, which no layer stashes: let a layer before it stash "
                f"that, in the same namespace, or remove it from the layer's pops"
            )
        if not popping:
            raise ValueError(
                f"{stashing[0]} stashes {name!r}, which no layer pops: let a layer behind it pop "
                f"that, in the same namespace, or remove it from the layer's stashes"
            )
        if destinations[name] < sources[name]:
            raise ValueError(
                f"{popping[0]} pops {name!r} before {stashing[0]} stashes it: exchange the two"
            )


End = Literal["stashes", "pops"]


def _declared(layers: Sequence[nn.Module], end: End) -> dict[Name, list[int]]:
    """Return the layers that declare each name, but for those with both ends of their skips."""
    found: dict[Name, list[int]] = {}
    for number, layer in enumerate(layers):
        for module in () if isinstance(layer, _Inlined) else layer.modules():
            if isinstance(module, Skippable):
                for name in getattr(module, end):
                    found.setdefault(module.full(name), []).append(number)
    return found
