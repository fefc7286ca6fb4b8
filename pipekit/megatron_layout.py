"""Megatron-LM's strings for ``--pipeline-model-parallel-layout``: which layers each stage has.

A letter is a layer: E the embedding, t a transformer block, m one that predicts further tokens
(MTP), L the output with the loss.  Stages are separated by ``|``, commas mean nothing, ``t*3`` is
ttt, and ``(tt|)*2`` is tt|tt|; groups hold no groups.  With PP ranks, stage s is on rank s modulo
PP: the loop of interleaved 1F1B.  (NVIDIA/Megatron-LM,
megatron/core/transformer/pipeline_parallel_layer_layout.py, read at commit 00caa53.)
"""

from collections.abc import Sequence
from itertools import groupby

LETTERS = "EtmL"
_MOST = 10**6


def read_layout(layout: str, workers: int | None = None) -> list[str]:
    """Return the letters of each stage.

    Args:
        layout: Megatron-LM's string.
        workers: its pipeline-parallel size, or None: as many as there are stages.

    Raises:
        ValueError: it is none, or not one that Megatron-LM would take; the message gives the
            position in the string, from 1.
    """
    letters = _Reader(layout).read()
    _require_order(letters, layout)
    stages = [[letter for letter, _ in stage] for stage in _split(letters)]
    for number, stage in enumerate(stages):
        if not stage:
            bars = [place for letter, place in letters if letter == "|"]
            place = bars[min(number, len(bars) - 1)] if bars else 1
            raise ValueError(
                f"position {place} of {layout!r}: stage {number} has no layer, which Megatron-LM "
                f"would take and a plan here not: leave out a |"
            )
    _require_places(stages, workers)
    return ["".join(stage) for stage in stages]


def write_layout(balance: Sequence[int], predictors: int = 0) -> str:
    """Return the string for a number of layers each stage; see :func:`read_layout`.

    Args:
        balance: layers of each stage, the embedding and the output among them.
        predictors: MTP layers right before the output.

    Raises:
        ValueError: there are too few layers, or Megatron-LM would not take it.
    """
    blocks = sum(balance) - 2 - predictors
    if blocks < 0 or predictors < 0:
        raise ValueError(
            f"{sum(balance)} layers are too few for an embedding, {predictors} MTP layers and an "
            f"output"
        )
    letters, stages, at = "E" + "t" * blocks + "m" * predictors + "L", [], 0
    for count in balance:
        stages.append(letters[at : at + count])
        at += count
    _require_places([[*stage] for stage in stages], None)
    runs = [[(key, len([*run])) for key, run in groupby(stage)] for stage in stages]
    return "|".join(
        ",".join(letter if count == 1 else f"{letter}*{count}" for letter, count in stage)
        for stage in runs
    )


_Letter = tuple[str, int]
"""A letter or a bar, and its position in the string."""


class _Reader:
    """Reads a string letter by letter."""

    def __init__(self, layout: str) -> None:
        self._text, self._at = layout, 0

    def read(self) -> list[_Letter]:
        found: list[_Letter] = []
        while self._at < len(self._text):
            found += self._group() if self._text[self._at] == "(" else self._item()
            if len(found) > _MOST:
                raise self._wrong(f"more than {_MOST:,} layers")
        return found

    def _group(self) -> list[_Letter]:
        start, found = self._at, []
        self._at += 1
        while self._next() not in (")", "("):
            if self._at >= len(self._text):
                self._at = start
                raise self._wrong("( without )")
            found += self._item()
        if self._next() == "(":
            raise self._wrong("a group within a group")
        self._at += 1
        if self._next() != "*":
            raise self._wrong("a group is followed by * and a number")
        return self._times(found)

    def _item(self) -> list[_Letter]:
        letter, self._at = self._next(), self._at + 1
        if letter == ",":
            return []
        if letter not in (*LETTERS, "|"):
            self._at -= 1
            raise self._wrong(f"{letter!r} is no layer: these are {', '.join(LETTERS)}")
        return self._times([(letter, self._at)])

    def _times(self, found: list[_Letter]) -> list[_Letter]:
        """Return what was read as often as a number behind it says."""
        if self._next() != "*":
            return found
        start = self._at = self._at + 1
        while self._next().isascii() and self._next().isdigit():
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            raise self._wrong("* is followed by a number")
        if len(digits) > len(str(_MOST)) or int(digits) * len(found) > _MOST:
            raise self._wrong(f"more than {_MOST:,} layers")
        return found * int(digits)

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"position {self._at + 1} of {self._text!r}: {what}")


def _split(letters: Sequence[_Letter]) -> list[list[_Letter]]:
    stages: list[list[_Letter]] = [[]]
    for each in letters:
        if each[0] == "|":
            stages.append([])
        else:
            stages[-1].append(each)
    return stages


def _require_order(letters: Sequence[_Letter], layout: str) -> None:
    """Raise ValueError unless the layers are one E, any t, then any m, and one L."""
    layers = [each for each in letters if each[0] != "|"]
    if not layers:
        raise ValueError(f"{layout!r} has no layer, such as E|t*3|t*3|L")
    last = len(layers) - 1
    for number, (letter, place) in enumerate(layers):
        if (letter == "E") != (number == 0) or (letter == "L") != (number == last):
            raise ValueError(
                f"position {place} of {layout!r}: {letter} cannot be layer {number} of {last + 1}: "
                f"the first one is E, the last one L, and neither comes twice"
            )
        if letter == "t" and layers[number - 1][0] == "m":
            raise ValueError(f"position {place} of {layout!r}: t comes before m")


def _require_places(stages: Sequence[Sequence[str]], workers: int | None) -> None:
    """Raise ValueError unless stages can be dealt out, and MTP layers are where they may be."""
    count = len(stages)
    workers = count if workers is None else workers
    if workers < 1 or count % workers:
        raise ValueError(f"{count} stages cannot be dealt out to {workers} workers equally")
    homes = [number for number, stage in enumerate(stages) if "m" in stage]
    if len(homes) > 1:
        raise ValueError(
            f"MTP layers are in stages {homes[0]} and {homes[1]}: Megatron-LM wants all in one"
        )
    if homes and homes[0] < count - workers:
        raise ValueError(
            f"MTP layers are in stage {homes[0]}, which is not the last stage of its rank: "
            f"Megatron-LM wants them in one of the last {workers}"
        )
