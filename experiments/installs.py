"""Measure how large an installation is: the files of pipekit's packages in this environment.

    python -m experiments.installs --output results/reference/first_steps/installs.csv

A row a way to install: ``pip install .``, with torch, and all that ``make`` installs.  What a way
needs is read off the packages' own metadata, so that one environment, the largest, is enough.
"""

from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from packaging.requirements import Requirement

from pipekit.host.provenance import provenance

WAYS = {"pip install .": "", "pip install '.[torch]'": "torch", "make": "dev"}
"""The extra of each way to install."""


def needed(name: str, extras: Iterable[str], found: dict[str, set[str]]) -> None:
    """Add a package to those ``found``, by name with their extras, and all that it requires."""
    wanted, key = {"", *extras}, name.lower().replace("_", "-")
    if wanted <= found.get(key, set()):
        return
    found[key] = found.get(key, set()) | wanted
    for requirement in map(Requirement, distribution(name).requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted):
            needed(requirement.name, requirement.extras, found)


def bytes_of(package: Distribution) -> int:
    """Return the size of a package's files that are there."""
    paths = (Path(str(file.locate())) for file in package.files or [])
    return sum(path.stat().st_size for path in paths if path.exists())


def main(output: Annotated[Path, typer.Option(help="The table.")]) -> None:
    """Write install, gb, packages and their origin; what is not installed here is an error."""
    origin = provenance("measured")
    rows = []
    for way, extra in WAYS.items():
        found: dict[str, set[str]] = {}
        needed("pipekit", [extra], found)
        size = sum(bytes_of(distribution(name)) for name in found)
        rows.append({"install": way, "gb": round(size / 1e9, 2), "packages": len(found)})
    kept = {key: origin[key] for key in ("utc", "label", "platform", "torch", "commit")}
    pd.DataFrame(rows).assign(**kept).to_csv(output, index=False)


if __name__ == "__main__":
    typer.run(main)
