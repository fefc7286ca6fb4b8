"""Which functions the plainest training runs: what a reader meets from ``train`` to the weights.

    python experiments/house/plain_train.py          # how many, in how many files
    python experiments/house/plain_train.py --list   # by file, with how often each is called

Two Linear layers and a ReLU, PipeDream on two stages over threads.  Counted is one ``train`` of
four batches by a second pipeline, after a first has imported and made what is made once.
"""

import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import torch
import typer
from torch import nn

import pipekit
from pipekit import Pipeline, schedules

HOME = Path(pipekit.__file__).parent


def called() -> Counter[tuple[str, str]]:
    """Return how often ``train`` calls each function, by file and qualified name."""
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{HOME}/"):
            calls[code.co_filename, code.co_qualname] += 1

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    batches = [(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(4)]
    how = {"optimizer": partial(torch.optim.SGD, lr=0.1), "loss": nn.MSELoss()}
    Pipeline(model, schedules.pipedream(2), **how).train(batches)
    second = Pipeline(model, schedules.pipedream(2), **how)
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        second.train(batches)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def main(
    functions: Annotated[bool, typer.Option("--list", help="Show them by file.")] = False,
) -> None:
    """Count the functions that the plainest training runs."""
    calls = called()
    for (file, name), count in sorted(calls.items()) if functions else ():
        print(f"{Path(file).relative_to(HOME.parent)}: {name} x {count}")
    print(f"{len(calls)} functions in {len({file for file, _ in calls})} files")


if __name__ == "__main__":
    typer.run(main)
