"""Megatron-LM's strings for ``--pipeline-model-parallel-layout``: which layers each stage has.

A letter is a layer: E the embedding, t a transformer block, m one that predicts further tokens
(MTP), L the output with the loss.  Stages are separated by ``|``, commas mean nothing, ``t*3`` is
ttt, and ``(tt|)*2`` is tt|tt|; groups hold no groups.  With PP ranks, stage s is on rank s modulo
PP: the loop of interleaved 1F1B.  (NVIDIA/Megatron-LM,
megatron/core/transformer/pipeline_parallel_layer_layout.py, read at commit 00caa53.)
"""

import re
from collections.abc import Sequence
from itertools import groupby

LETTERS = "EtmL"
_PART = re.compile(
    r"\((?P<group>[^()]*)\)\*(?P<times>\d+)|(?P<letter>[EtmL|])(\*(?P<count>\d+))?|,", re.ASCII
)
_MOST = 10**6


def read_layout(layout: str, workers: int | None = None) -> list[str]:
    """Return the letters of each stage; ``workers`` by default are as many as there are stages.

    Raises:
        ValueError: Megatron-LM would not take it; the message gives the position, from 1.
    """
    letters = _letters(layout, 0, len(layout))
    _require_order(letters, layout)
    stages = "".join(letter for letter, _ in letters).split("|")
    for number, stage in enumerate(stages):
        if not stage:
            bars = [place for letter, place in letters if letter == "|"]
            place = bars[min(number, len(bars) - 1)] if bars else 1
            raise ValueError(
                f"position {place} of {layout!r}: stage {number} has no layer, which Megatron-LM "
                f"would take and a plan here not: leave out a |"
            )
    _require_places(stages, workers)
    return stages


def write_layout(balance: Sequence[int], predictors: int = 0) -> str:
    """Return the string for a number of layers each stage, with MTP layers before the output.

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
    _require_places(stages, None)
    runs = [[(key, len([*run])) for key, run in groupby(stage)] for stage in stages]
    return "|".join(
        ",".join(letter if count == 1 else f"{letter}*{count}" for letter, count in stage)
        for stage in runs
    )


_Letter = tuple[str, int]
"""A letter or a bar, and its position in the string."""


def _letters(text: str, at: int, stop: int) -> list[_Letter]:
    """Return all letters and bars of a part of the string, groups and numbers written out."""
    found: list[_Letter] = []
    while at < stop:
        part = _PART.match(text, at, stop)
        if part is None:
            raise ValueError(
                f"position {at + 1} of {text!r}: {text[at]!r} is not a layer "
                f"({', '.join(LETTERS)}), and begins neither x*n nor (...)*n of these, n being a "
                f"number"
            )
        items = [(part["letter"], at + 1)] if part["letter"] else []
        if part["group"]:
            items = _letters(text, *part.span("group"))
        times = part["times"] or part["count"] or "1"
        if len(times) > len(str(_MOST)) or len(found) + int(times) * len(items) > _MOST:
            raise ValueError(f"position {part.end() + 1} of {text!r}: more than {_MOST:,} layers")
        found += items * int(times)
        at = part.end()
    return found


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


def _require_places(stages: Sequence[str], workers: int | None) -> None:
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
