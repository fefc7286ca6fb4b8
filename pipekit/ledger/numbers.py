"""Numbers in prose that come from a run: written into the pages from ``results/reference``.

A page marks such a number by comments, which no reader of the rendered page sees::

    <!-- number: faults/kills.csv, distinct trial -->34<!-- -->
    <!-- number: a/summary.csv, only found, where what = mean error, as .1% -->0.9%<!-- -->

First comes the table, below ``results/reference``; then a statistic and the column that it is of;
then, if wanted, the rows that count and Python's format.  ``make numbers`` writes what the tables
hold; a test compares.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd

REFERENCE = Path("results/reference")

MARK = re.compile(
    r"<!-- number: (?P<table>[^,>]+), (?P<statistic>\w+) (?P<column>[^,>]+)"
    r"(?:, where (?P<key>[^=,>]+) = (?P<value>[^>]+?))?(?:, as (?P<format>[^\s,>]+))? -->"
    r"(?P<shown>[^<]*)<!-- -->"
)

_STATISTICS: dict[str, Callable[["pd.Series[float]"], float]] = {
    "count": len,
    "distinct": pd.Series.nunique,
    "only": pd.Series.item,
    "min": pd.Series.min,
    "max": pd.Series.max,
    "mean": pd.Series.mean,
    "median": pd.Series.median,
    "worst": lambda rows: rows.abs().max(),
    "mean_size": lambda rows: rows.abs().mean(),
}


def rendered(text: str, reference: Path) -> str:
    """Return a page with its marked numbers as the tables below ``reference`` have them."""
    if text.count("<!-- number:") != len(list(MARK.finditer(text))):
        raise ValueError("a mark '<!-- number: ...' is not as pipekit.ledger.numbers describes")
    read = cache(pd.read_csv)
    return MARK.sub(lambda mark: _rendered(mark, reference, read), text)


def pages(repository: Path) -> list[Path]:
    """Return the pages and notebooks of a checkout that have marks."""
    found = [
        *repository.glob("*.md"),
        *repository.glob("docs/**/*.md"),
        *repository.glob("notebooks/**/*.ipynb"),
    ]
    return sorted(path for path in found if "<!-- number:" in path.read_text(encoding="utf-8"))


def _rendered(mark: re.Match[str], reference: Path, read: Callable[[Path], pd.DataFrame]) -> str:
    asked = mark.groupdict()
    try:
        rows = read(reference / asked["table"])
        if asked["key"]:
            rows = rows[rows[asked["key"]].astype(str) == asked["value"]]
        number = _STATISTICS[asked["statistic"]](rows[asked["column"]])
        shown = format(number, asked["format"] or "")
    except (OSError, LookupError, ValueError, TypeError) as error:
        raise ValueError(f"{mark[0]}: {type(error).__name__}: {error}") from error
    return mark[0].replace(f"-->{asked['shown']}<", f"-->{shown}<")


def main() -> None:
    """Write the numbers into the pages of the checkout that this runs in."""
    for page in pages(Path()):
        text = page.read_text(encoding="utf-8")
        page.write_text(rendered(text, REFERENCE), encoding="utf-8")
        print(f"{page}: {len(MARK.findall(text))} numbers")


if __name__ == "__main__":
    main()
