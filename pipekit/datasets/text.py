"""Text to learn to write or to read: tokens are bytes, from Python, its packages or a file.

Words to guess are those of the masked language model of BERT (Devlin et al., 2019, section 3.1).
"""

import functools
import hashlib
import platform
import sys
import sysconfig
from collections import Counter
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import torch
from torch import Tensor

from pipekit.datasets.dataset import Alteration, Batch, Dataset, check_rows
from pipekit.devices import CPU
from pipekit.units import bytes_text

BYTES = 256  # the vocabulary of a text
MASK = BYTES  # the token of a masked byte: a model of masked text has a vocabulary of 257
IGNORED = -100  # the target of a token that is not to be guessed, as of PyTorch's cross entropy
_GUESSED, _MASKED, _RANDOM = 0.15, 0.8, 0.1
TEST_SHARE = 0.1  # of a text file, at its end
_TABLES = frozenset({"encodings", "pydoc_data"})  # generated
_PARTIAL = frozenset({"distutils", "idlelib", "lib2to3", "tkinter", "turtledemo"})  # not everywhere
_TESTS = frozenset({"test", "tests"})
_EACH_FIFTH = 5
RELEASE = f"the standard library of Python {platform.python_version()}"  # texts differ by it
_TEXTS = frozenset({".py", ".pyi", ".md", ".rst", ".txt"})


def python_source(
    sequence: int = 128, rows: int | None = 4000, test_rows: int | None = 400
) -> Dataset:
    """Return the bytes of Python's own standard library, as text to predict the next byte of.

    A row is a window of T bytes; its target is the same window one byte later.  A fifth of the
    files is for testing, the same whatever the arguments.

    Args:
        sequence: T, bytes a row.
        rows, test_rows: in all, and how many of them to test on; None: all that there are.

    Raises:
        ValueError: the library is too short, or no row is left for training.
    """
    return _language("python_source", RELEASE, _source(), sequence, rows, test_rows)


def text_file(path: Path | str, sequence: int = 128) -> Dataset:
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
    stop = len(text) - round(TEST_SHARE * len(text))
    parts = text[:stop], text[stop:]
    return _language(path.stem, str(path), parts, sequence, None, None)


def installed_text(
    sequence: int = 128, rows: int | None = None, test_rows: int | None = 1000
) -> Dataset:
    """Return all installed packages' text; see :func:`pipekit.datasets.python_source`.

    It is the standard library and the packages' text files, a fifth of the packages for testing.
    Another environment holds another text: ``source`` has its size and a checksum.
    """
    train, test, packages = _texts()
    digest = hashlib.sha256(train + test).hexdigest()[:12]
    size = bytes_text(len(train) + len(test))
    source = f"{RELEASE} and {packages} packages, {size}, sha256 {digest}..."
    return _language("installed_text", source, (train, test), sequence, rows, test_rows)


def library() -> tuple[list[Path], list[Path]]:
    """Return the library's files to learn from and to test on: a fifth of each folder's."""
    found: tuple[list[Path], list[Path]] = ([], [])
    root = Path(sysconfig.get_path("stdlib"))
    # Only the documented modules: distributions add files of their own to this folder.
    modules = sys.stdlib_module_names - _TABLES - _PARTIAL - _TESTS
    so_far = Counter[Path]()  # files of each folder
    for path in sorted(root.rglob("*.py"), key=lambda path: (path.parent, path.name)):
        parts = path.relative_to(root).parts
        if parts[0].removesuffix(".py") in modules and not _TESTS.intersection(parts):
            found[so_far[path.parent] % _EACH_FIFTH == 1].append(path)
            so_far[path.parent] += 1
    return found


@functools.cache  # reads eight megabytes
def _source() -> tuple[bytes, bytes]:
    train, test = (b"".join(path.read_bytes() for path in paths) for paths in library())
    return train, test


@functools.cache  # reads some hundred megabytes
def _texts() -> tuple[bytes, bytes, int]:
    """Return the texts to learn from and to test on, and how many packages they are from."""
    parts, packages = [[text] for text in _source()], 0
    for package in sorted(distributions(), key=lambda package: package.name.lower()):
        files = (Path(str(file.locate())) for file in package.files or [] if file.suffix in _TEXTS)
        text = b"".join(path.read_bytes() for path in sorted(files) if path.is_file())
        if text:
            parts[packages % _EACH_FIFTH == 1].append(text)
            packages += 1
    train, test = (b"".join(part) for part in parts)
    return train, test, packages


def _windows(text: bytes, length: int, step: int) -> Tensor:
    """Return uint8 ``[N, length]``: windows of a text, without copying it, ``step`` bytes apart."""
    if len(text) < length:
        return torch.empty(0, length, dtype=torch.uint8, device=CPU)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, length, step)


def _draw(rows: Tensor, number: int, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator, device=CPU)[:number]].long()


def _language(
    name: str,
    source: str,
    texts: tuple[bytes, bytes],
    sequence: int,
    rows: int | None,
    test_rows: int | None,
) -> Dataset:
    """Return texts to learn and to test on as rows; arguments as for :func:`python_source`."""
    if sequence < 1:
        raise ValueError(f"sequence must be at least 1, not {sequence}")
    train, test = (_windows(text, sequence + 1, sequence) for text in texts)
    what = f"rows of {sequence} bytes"
    tests = len(test) if test_rows is None else test_rows
    check_rows("test_rows", tests, len(test), f"{what} in the test text")
    rows = tests + len(train) if rows is None else rows
    check_rows("rows", rows - tests, len(train), f"{what} for training, besides {tests}")
    generator = torch.Generator().manual_seed(0)
    learnt = _draw(train, rows - tests, generator)  # [N, T + 1]
    tried = _draw(test, tests, generator)
    return Dataset(name, source, learnt[:, :-1], learnt[:, 1:], tried[:, :-1], tried[:, 1:])


def masked(text: Dataset) -> Dataset:
    """Return a text with some bytes to guess from those on both sides, anew in every epoch.

    To guess are 15 % of a row, one byte at least: 80 % of these are hidden, 10 % replaced by a
    random byte and 10 % left as they are.  ``text`` is of :func:`python_source` or
    :func:`text_file`.
    """
    guessed = max(1, round(_GUESSED * text.train_inputs.shape[1]))
    masks = Alteration("mask", functools.partial(_masked, guessed), in_tests=True)
    return replace(text, name=f"masked {text.name}", alteration=masks)


def _masked(guessed: int, batch: Batch, generator: torch.Generator) -> Batch:
    """Return tokens ``[B, T]`` with some of them hidden, and what to guess there ``[B, T]``."""
    tokens, _ = batch
    order = torch.rand(tokens.shape, generator=generator, device=CPU).argsort(dim=1)
    places = order[:, :guessed]  # [B, guessed]
    truth = tokens.gather(1, places)
    what = torch.rand(places.shape, generator=generator, device=CPU)
    shown = torch.where(what < _MASKED, MASK, truth)
    wrong = torch.randint(BYTES, places.shape, generator=generator, device=CPU)
    shown = torch.where(what >= 1 - _RANDOM, wrong, shown)
    targets = torch.full_like(tokens, IGNORED).scatter(1, places, truth)
    return tokens.scatter(1, places, shown), targets
