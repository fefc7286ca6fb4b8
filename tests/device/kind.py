"""The kind of devices that the tests run on, and what their results are compared with.

On the simulated accelerator results are the CPU's, to the bit, and its detector reports races.  On
any other kind (PIPEKIT_DEVICE=cuda; see ``make gpu``) operators round as they like: there results
are those of the same training on one device that stops for every step of every worker.
"""

import os
from typing import Any

import pytest
import torch

from pipekit import devices
from pipekit.engine import Observer

KIND = os.environ.get("PIPEKIT_DEVICE", "sim")
SIMULATED = KIND == "sim"


class StopForEach(Observer):
    """Wait until the device is idle, before and after whatever is computed."""

    def before_compute(self, *_: Any) -> None:
        if KIND != "cpu":  # which tells whether the tests themselves run on any kind
            torch.accelerator.synchronize(KIND)

    def after_compute(self, *_: Any) -> None:
        self.before_compute()


def on(number: int, workers: int) -> list[str]:
    """So many devices for so many workers, in turn."""
    if number > (here := devices.device_count(KIND)):
        pytest.skip(f"needs {number} devices; {here} are here")
    return [f"{KIND}:{worker % number}" for worker in range(workers)]


def to_compare(workers: int) -> list[str]:
    """Where the training runs that all others are compared with."""
    return ["cpu" if SIMULATED else f"{KIND}:0"] * workers


def careful() -> dict[str, Any]:
    """How it is watched."""
    return {} if SIMULATED else {"observers": [StopForEach()]}
