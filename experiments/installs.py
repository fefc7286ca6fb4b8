"""Measure how large an installation is: the files of pipekit's packages in this environment.

    python -m experiments.installs --output results/reference/first_steps/installs.csv

What a way to install needs is read off the packages' metadata: the largest environment is enough.
"""

from collections.abc import Iterable
from importlib.metadata import distribution
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
    wanted = {"", *extras}
    if wanted <= found.setdefault(name, set()):
        return
    found[name] |= wanted
    for requirement in map(Requirement, distribution(name).requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted):
            needed(requirement.name.lower().replace("_", "-"), requirement.extras, found)


def main(output: Annotated[Path, typer.Option(help="The table.")]) -> None:
    """Write install, gb, packages and their origin; what is not installed here is an error."""
    rows = []
    for way, extra in WAYS.items():
        found: dict[str, set[str]] = {}
        needed("pipekit", [extra], found)
        files = [Path(str(f.locate())) for name in found for f in distribution(name).files or []]
        size = sum(path.stat().st_size for path in files if path.exists())
        rows.append({"install": way, "gb": round(size / 1e9, 2), "packages": len(found)})
    origin = provenance("measured")
    kept = {key: origin[key] for key in ("utc", "label", "platform", "torch", "commit")}
    pd.DataFrame(rows).assign(**kept).to_csv(output, index=False)


if __name__ == "__main__":
    typer.run(main)
