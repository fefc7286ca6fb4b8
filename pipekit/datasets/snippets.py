"""A small real task of reading: which package of the standard library is a snippet from?"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipekit.datasets.dataset import Batch, Dataset, check_rows
from pipekit.datasets.standard_library import RELEASE, SourceFile, library
from pipekit.datasets.text import draw, windows


def python_snippets(
    sequence: int = 128, classes: int = 8, rows: int = 2400, test_rows: int = 800, seed: int = 0
) -> Dataset:
    """Return pieces of the standard library's packages, each with its package as class.

    The classes are the packages that have the most text in their smaller part, training or test;
    all have equally many rows.  The files to test on are those of :func:`python_source`, so that a
    model trained on either has seen none of them.  Snippets do not overlap.

    Args:
        sequence: T, bytes a snippet.
        classes: how many packages.
        rows: snippets in all, training and test; a multiple of ``classes``, as ``test_rows``.
        test_rows: how many of them to test on.
        seed: chooses the snippets.

    Raises:
        ValueError: there are not so many packages or snippets, or they cannot be shared equally.
    """
    if rows % classes or test_rows % classes:
        raise ValueError(
            f"{rows} rows, {test_rows} of them to test on, cannot be shared by {classes} classes: "
            f"use multiples of {classes}"
        )
    generator = torch.Generator().manual_seed(seed)
    parts = library()
    packages = sorted({file.package for file in parts.train} - {""})
    texts = {p: [_snippets(part, p, sequence) for part in parts] for p in packages}
    sizes = {p: min(map(len, both)) for p, both in texts.items()}
    check_rows("classes", classes, len(packages), "packages")
    chosen = sorted(sorted(packages, key=lambda p: -sizes[p])[:classes])
    each_train, each_test = (rows - test_rows) // classes, test_rows // classes
    sets = []
    for part, each, name in [(0, each_train, "rows"), (1, each_test, "test_rows")]:
        least = min(len(texts[p][part]) for p in chosen)
        check_rows(f"{name} a class", each, least, f"snippets of {sequence} bytes")
        sets.append(_labelled([texts[p][part] for p in chosen], each, generator))
    (train, train_classes), (test, test_classes) = sets
    source = f"{RELEASE}: {', '.join(chosen)}"
    return Dataset("python_snippets", source, train, train_classes, test, test_classes)


def _snippets(files: Sequence[SourceFile], package: str, length: int) -> Tensor:
    """Return uint8 ``[N, T]``, none of which reaches from one file into another."""
    own = [windows(file.text, length, length) for file in files if file.package == package]
    return torch.cat(own) if own else torch.empty(0, length, dtype=torch.uint8)


def _labelled(texts: Sequence[Tensor], each: int, generator: torch.Generator) -> Batch:
    chosen = [draw(text, each, generator) for text in texts]
    return torch.cat(chosen), torch.arange(len(texts)).repeat_interleave(each)
