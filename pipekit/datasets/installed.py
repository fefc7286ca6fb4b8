"""All text that the installed packages hold: more than Python's own, and still on every machine."""

import functools
import hashlib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from pipekit.datasets.dataset import Dataset
from pipekit.datasets.standard_library import RELEASE, library
from pipekit.datasets.text import language
from pipekit.units import bytes_text

_TEXTS = frozenset({".py", ".pyi", ".md", ".rst", ".txt"})
_EACH_FIFTH = 5


def installed_text(
    sequence: int = 128, rows: int | None = None, test_rows: int | None = 1000, seed: int = 0
) -> Dataset:
    """Return all installed packages' text; see :func:`pipekit.datasets.python_source`.

    It is the standard library and the packages' text files.  A fifth of the packages is for
    testing, besides :func:`python_source`'s test files, so that no package of these is in both
    parts.  Another environment holds another text: ``source`` has its size and a checksum.
    """
    train, test, packages = _texts()
    digest = hashlib.sha256(train + test).hexdigest()[:12]
    source = (
        f"{RELEASE} and {packages} packages, {bytes_text(len(train) + len(test))}, "
        f"sha256 {digest}..."
    )
    return language("installed_text", source, (train, test), sequence, rows, test_rows, seed)


@functools.cache  # reads some hundred megabytes
def _texts() -> tuple[bytes, bytes, int]:
    """Return the texts to learn from and to test on, and how many packages they are from."""
    parts = [[file.text for file in files] for files in library()]
    found = sorted(distributions(), key=lambda package: package.name.lower())
    texts = [text for text in map(_text, found) if text]
    for number, text in enumerate(texts):
        parts[number % _EACH_FIFTH == 1].append(text)
    train, test = (b"".join(part) for part in parts)
    return train, test, len(texts)


def _text(package: Distribution) -> bytes:
    files = (Path(str(file.locate())) for file in package.files or [] if file.suffix in _TEXTS)
    return b"".join(path.read_bytes() for path in sorted(files) if path.is_file())
