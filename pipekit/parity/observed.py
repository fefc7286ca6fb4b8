"""What a trainer did: the ranks joined by name, and each update turned back into a gradient."""

from collections.abc import Iterator, Sequence
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
        for rank, record in enumerate(records):
            self._require(rank, record)
        self.steps = self._finite_steps()
        self.finite = self.steps == len(loop.batches)
        self.other_start = self._other_start()
        for version in range(1, self.steps + 1):
            buffers = self._joined(version, loop.buffers[-1])
            loop.advance(self._joined(version, loop.weights[-1]), buffers)
        held = {use for r in records for n in r.parameters[-1] for use in loop.uses.get(n, ())}
        self.missing = [n for n in loop.uses if n not in held and n not in loop.frozen]
        self.differing = sorted(set(self._differing()))
        self.updates = list(self._entries("parameters"))
        self.gradients = list(self._entries("gradients")) if self._have_gradients() else []
        self.losses = [
            [r.losses[step] for r in records if r.losses[step] is not None]
            for step in range(self.steps)
        ]

    def layers_held(self) -> list[set[int]]:
        """Return the layers of which each rank holds parameters."""
        uses = self.loop.uses
        return [{self.loop.layer(n) for n in r.parameters[-1] if n in uses} for r in self.records]

    def _require(self, rank: int, record: Record) -> None:
        known = self.loop.weights[0] | self.loop.buffers[0]
        if any(tensors.keys() != record.parameters[1].keys() for tensors in record.parameters[1:]):
            raise ValueError(
                f"rank {rank}'s parameters() has other names after some step: return all"
            )
        for source in ("parameters", "gradients"):
            for tensors in getattr(record, source) or ():
                for name, tensor in tensors.items():
                    self._require_like(f"rank {rank}'s {source}()", name, tensor, known)

    def _require_like(self, source: str, name: str, tensor: Tensor, known: Tensors) -> None:
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{source} has {name!r}, and the model no such parameter{meant}")
        if tensor.shape != known[name].shape:
            raise ValueError(
                f"{source} has {name!r} with the shape {list(tensor.shape)}, and the model's is "
                f"{list(known[name].shape)}: return whole tensors"
            )

    def _finite_steps(self) -> int:
        for step in range(len(self.loop.batches)):
            for rank, record in enumerate(self.records):
                found = {"parameters": record.parameters[step + 1]}
                if record.gradients is not None:
                    found["gradients"] = record.gradients[step]
                for source, tensors in found.items():
                    for name, tensor in tensors.items():
                        if not tensor.isfinite().all() and step:
                            return step
                        if not tensor.isfinite().all():
                            raise ValueError(
                                f"rank {rank}'s {source}() has NaN or infinity in {name!r} after "
                                f"the first update: mend that first"
                            )
        return len(self.loop.batches)

    def _other_start(self) -> list[str]:
        """Return the parameters that differ before the first update, and go on from them."""
        start = self._joined(0, self.loop.weights[0])
        own = self.loop.weights[0]
        other = [n for n in own if not torch.equal(start[n].float(), own[n].float())]
        self.loop.weights[0] = start
        return other

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
                for name, tensor in record.parameters[version].items():
                    if name in self.loop.uses:
                        other = first.setdefault(name, tensor)
                        if (tensor - other).abs().max() > 2 * ULP * other.abs().max():
                            yield name

    def _have_gradients(self) -> bool:
        return any(record.gradients is not None for record in self.records)

    def _entries(self, source: str) -> Iterator[Entry]:
        seen = set()
        for rank, record in enumerate(self.records):
            for name in record.parameters[-1]:
                if name in seen or name not in self.loop.uses:
                    continue
                if source == "parameters":
                    values = self._updates(record, name)
                elif name in self.loop.frozen:
                    continue
                else:
                    values = self._gradients(rank, record, name)
                alike = name not in self.differing
                if alike:
                    seen.add(name)
                yield Entry(name, None if alike else rank, values)

    def _updates(self, record: Record, name: str) -> tuple[Tensor, ...]:
        start = record.parameters[0].get(name, self.loop.weights[0][name])
        versions = [start, *(tensors[name] for tensors in record.parameters[1 : self.steps + 1])]
        doubles = [version.double() for version in versions]
        return tuple((a - b) / LEARNING_RATE for a, b in pairwise(doubles))

    def _gradients(self, rank: int, record: Record, name: str) -> tuple[Tensor, ...]:
        found = (record.gradients or [])[: self.steps]
        if not found or any(name not in tensors for tensors in found):
            raise ValueError(
                f"rank {rank}'s gradients() has none for {name!r}, which its parameters() has: "
                f"return it before it is cleared, or leave out the method gradients()"
            )
        return tuple(tensors[name].double() for tensors in found)
