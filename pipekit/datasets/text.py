"""Text to learn to write: tokens are bytes, and the targets are the bytes that come next."""

from pathlib import Path

import torch
from torch import Tensor

from pipekit.datasets.dataset import Dataset, check_rows
from pipekit.datasets.standard_library import RELEASE, library

BYTES = 256
"""The vocabulary of a text."""
TEST_SHARE = 0.1
"""Of a text file, at its end."""


def python_source(
    sequence: int = 128, rows: int | None = 4000, test_rows: int | None = 400, seed: int = 0
) -> Dataset:
    """Return the bytes of Python's own standard library, as text to predict the next byte of.

    A row is a window of T bytes; its target is the same window one byte later.  A fifth of the
    files is for testing, the same whatever the arguments, so that no file is in both parts.  The
    text is that of the running Python release.

    Args:
        sequence: T, bytes a row.
        rows: rows in all, training and test; None: all that there are.
        test_rows: how many of them to test on; None: all that there are.
        seed: chooses the windows.

    Raises:
        ValueError: the library is too short, or no row is left for training.
    """
    train, test = (b"".join(file.text for file in files) for files in library())
    return language("python_source", RELEASE, (train, test), sequence, rows, test_rows, seed)


def text_file(
    path: Path | str,
    sequence: int = 128,
    rows: int | None = None,
    test_rows: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return a file's bytes, the last tenth to test on; see :func:`pipekit.datasets.python_source`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too short, or no row is left for training.
    """
    path = Path(path)
    text = path.read_bytes()
    least = round((sequence + 1) / TEST_SHARE)
    if len(text) < least:
        raise ValueError(
            f"{path} has {len(text)} bytes, and rows of {sequence} need at least {least}, since a "
            f"tenth is for testing: use a longer text"
        )
    end = len(text) - round(TEST_SHARE * len(text))
    parts = text[:end], text[end:]
    return language(path.stem, str(path), parts, sequence, rows, test_rows, seed)


def windows(text: bytes, length: int, step: int) -> Tensor:
    """Return uint8 ``[N, length]``: windows of a text, without copying it, ``step`` bytes apart."""
    if len(text) < length:
        return torch.empty(0, length, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, length, step)


def draw(rows: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return so many different rows as int64, in random order."""
    return rows[torch.randperm(len(rows), generator=generator)[:number]].long()


def language(
    name: str,
    source: str,
    texts: tuple[bytes, bytes],
    sequence: int,
    rows: int | None,
    test_rows: int | None,
    seed: int,
) -> Dataset:
    """Return texts to learn and to test on as rows; arguments as for :func:`python_source`."""
    if sequence < 1:
        raise ValueError(f"sequence must be at least 1, not {sequence}")
    train, test = (windows(text, sequence + 1, sequence) for text in texts)
    what = f"rows of {sequence} bytes"
    tests = len(test) if test_rows is None else test_rows
    check_rows("test_rows", tests, len(test), f"{what} in the test text")
    rows = tests + len(train) if rows is None else rows
    check_rows("rows", rows - tests, len(train), f"{what} for training, besides {tests}")
    generator = torch.Generator().manual_seed(seed)
    learnt, tried = draw(train, rows - tests, generator), draw(test, tests, generator)  # [N, T + 1]
    return Dataset(name, source, learnt[:, :-1], learnt[:, 1:], tried[:, :-1], tried[:, 1:])
