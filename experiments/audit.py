"""Draw passes of the golden file to be doubted: docs/audit.md says in which run each missed.

python -m experiments.audit              # the 40 of the page, if the golden file is its own
python -m experiments.audit --seed 9     # others
"""

import random
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from experiments.golden import GOLDEN
from pipekit.cli.claim import places
from pipekit.ledger.claims import load


def drawn(outcomes: pd.DataFrame, seed: int, count: int) -> list[str]:
    """Return the ids of some claims that pass, in the order in which they were drawn."""
    passes = sorted(outcomes.loc[outcomes["outcome"] == "pass", "id"])
    return random.Random(seed).sample(passes, count)


def main(
    seed: Annotated[int, typer.Option(help="of the draw")] = 8,
    count: Annotated[int, typer.Option(help="how many passes are drawn")] = 40,
    golden: Annotated[Path, typer.Option(help="the golden file")] = GOLDEN,
) -> None:
    outcomes = pd.read_csv(golden, keep_default_na=False)
    values = outcomes.set_index("id")["value"]
    for id in drawn(outcomes, seed, count):
        claim = load()[id]
        print(
            f"{id}: {claim.claim}", f"  paper {claim.value} {claim.unit}; {claim.check}", sep="\n"
        )
        print(f"  ours {values[id]}; {'; '.join(places(id))}")


if __name__ == "__main__":
    typer.run(main)
