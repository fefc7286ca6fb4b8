"""What a trainer did: the ranks joined by name, and each update turned back into a gradient."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

import torch
from torch import Tensor

from pipekit.parity.plain_loop import LEARNING_RATE, PlainLoop, Tensors
from pipekit.parity.worker import Record

TOLERANCE = 32  # ulps; a correct float32 loop differs by three at most (docs/gradients.md)
ULP = 2.0**-23


@dataclass(frozen=True)
class Entry:
    """A parameter as one rank, or all ranks alike, have trained it.

    Attributes:
        name: the parameter's.
        rank: whose copy, where ranks differ.
        values: what SGD seems to have been given in each update, or what ``gradients()`` returned.
    """

    name: str
    rank: int | None
    values: tuple[Tensor, ...]


class Observed:
    """The records of all ranks, beside the plain loop, whose weights become the trainer's.

    Args:
        loop: on the same batches; each of its passes reads the weights that the trainer had.
        records: of the ranks, in order.

    Raises:
        ValueError: a name, a shape or a number is none that the model could have.
    """

    def __init__(self, loop: PlainLoop, records: Sequence[Record]) -> None:
        self.loop, self.records, self.stated = loop, records, records[0].stated
        for source, versions in self._sources():
            _require_names(source, versions, loop.weights[0] | loop.buffers[0])
        self.steps = min(_finite_steps(source, versions) for source, versions in self._sources())
        self.finite = self.steps == len(loop.batches)
        start, own = self._joined(0, loop.weights[0]), loop.weights[0]
        self.other_start = [n for n in own if not torch.equal(start[n].float(), own[n].float())]
        loop.weights[0] = start
        for version in range(1, self.steps + 1):
            buffers = self._joined(version, loop.buffers[-1])
            loop.advance(self._joined(version, loop.weights[-1]), buffers)
        held = {use for r in records for n in r.parameters[-1] for use in loop.uses.get(n, ())}
        self.missing = [n for n in loop.uses if n not in held and n not in loop.frozen]
        self.differing = sorted(set(self._differing()))
        self.updates = list(self._entries(self._updates))
        own_gradients = any(record.gradients is not None for record in records)
        self.gradients = list(self._entries(self._gradients)) if own_gradients else []
        self.losses = [
            [loss for r in records if (loss := r.losses[step]) is not None]
            for step in range(self.steps)
        ]

    def layers_held(self) -> list[set[int]]:
        """Return the layers of which each rank holds parameters."""
        uses = self.loop.uses
        return [{self.loop.layer(n) for n in r.parameters[-1] if n in uses} for r in self.records]

    def _sources(self) -> Iterator[tuple[str, list[Tensors]]]:
        """Yield all that the ranks returned after each step."""
        for rank, record in enumerate(self.records):
            yield f"rank {rank}'s parameters()", record.parameters[1:]
            if record.gradients is not None:
                yield f"rank {rank}'s gradients()", record.gradients

    def _joined(self, version: int, instead: Tensors) -> Tensors:
        """Return each tensor of a version from the first rank that holds it, by any name."""
        joined = dict(instead)
        for name in instead:
            uses = dict.fromkeys((name, *self.loop.uses.get(name, ())))
            held = (r.parameters[version].get(use) for use in uses for r in self.records)
            tensor = next((found for found in held if found is not None), None)
            if tensor is not None:
                joined[name] = tensor.to(instead[name].dtype)
        return joined

    def _differing(self) -> Iterator[str]:
        for version in range(1, self.steps + 1):
            first: Tensors = {}
            for record in self.records:
                for name in self.loop.uses.keys() & record.parameters[version].keys():
                    tensor = record.parameters[version][name]
                    other = first.setdefault(name, tensor)
                    if (tensor - other).abs().max() > 2 * ULP * other.abs().max():
                        yield name

    def _entries(
        self, values_of: Callable[[int, str], tuple[Tensor, ...] | None]
    ) -> Iterator[Entry]:
        seen = set()
        for rank, record in enumerate(self.records):
            for name in (n for n in record.parameters[-1] if n in self.loop.uses):
                if name not in seen and (values := values_of(rank, name)) is not None:
                    yield Entry(name, rank if name in self.differing else None, values)
                if name not in self.differing:
                    seen.add(name)

    def _updates(self, rank: int, name: str) -> tuple[Tensor, ...]:
        versions = self.records[rank].parameters
        start = versions[0].get(name, self.loop.weights[0][name])
        doubles = [start.double(), *(v[name].double() for v in versions[1 : self.steps + 1])]
        return tuple((a - b) / LEARNING_RATE for a, b in pairwise(doubles))

    def _gradients(self, rank: int, name: str) -> tuple[Tensor, ...] | None:
        found = (self.records[rank].gradients or [])[: self.steps]
        if name in self.loop.frozen:
            return None
        if not found or any(name not in tensors for tensors in found):
            raise ValueError(
                f"rank {rank}'s gradients() has none for {name!r}, which its parameters() has: "
                f"return it before it is cleared, or leave out the method gradients()"
            )
        return tuple(tensors[name].double() for tensors in found)


def _require_names(source: str, versions: list[Tensors], known: Tensors) -> None:
    if source.endswith("parameters()") and any(v.keys() != versions[0].keys() for v in versions):
        raise ValueError(f"{source} has other names after some step: return all")
    for name, tensor in (pair for tensors in versions for pair in tensors.items()):
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{source} has {name!r}, and the model no such parameter{meant}")
        if tensor.shape != known[name].shape:
            raise ValueError(
                f"{source} has {name!r} with the shape {list(tensor.shape)}, and the model's is "
                f"{list(known[name].shape)}: return whole tensors"
            )


def _finite_steps(source: str, versions: list[Tensors]) -> int:
    """Return how many steps are finite; the first must be."""
    for step, tensors in enumerate(versions):
        wrong = next(
            (name for name, tensor in tensors.items() if not tensor.isfinite().all()), None
        )
        if wrong is not None and step:
            return step
        if wrong is not None:
            raise ValueError(
                f"{source} has NaN or infinity in {wrong!r} after the first update: mend that first"
            )
    return len(versions)
