"""What is predicted of a training: seconds with an interval, and memory of each rank."""

import math
from dataclasses import dataclass
from statistics import median

from pipekit.performance.collectives import Links
from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import Machine
from pipekit.performance.frameworks import Framework
from pipekit.performance.layout import Layout
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import Shape
from pipekit.performance.training import Training


@dataclass(frozen=True)
class Estimate:
    """A prediction.

    Attributes:
        step_s: seconds of a step.
        low_s, high_s: four of five measured steps are between such bounds.
        peak_bytes: allocated, of each pipeline rank.
        fits: whether each rank's bytes are below the device's memory.
    """

    step_s: float
    low_s: float
    high_s: float
    peak_bytes: tuple[float, ...]
    fits: bool


def estimate(run: Training) -> Estimate:
    """Return what is predicted of a training; its interval is the median of all sets'.

    Raises:
        ValueError: the layout does not suit the model.
    """
    half = median(each for own in fitted().half_widths.values() for each in own.values())
    seconds, peaks = step(run).seconds, tuple(peak_bytes(run))
    fits = max(peaks) <= run.links.machine.device.memory_bytes
    low, high = (seconds * math.exp(sign * half) for sign in (-1, 1))
    return Estimate(seconds, low, high, peaks, fits)


def training(
    shape: Shape,
    layout: Layout,
    machine: Machine,
    framework: Framework,
    *,
    seq_tokens: int,
    dtype: str = "bfloat16",
    constants: Constants | None = None,
) -> Training:
    """Return a training by the constants that were fitted for its framework and device."""
    named = f"{framework.name} on {machine.device.name.partition(' ')[0]}"
    own = constants or fitted().constants(named)
    return Training(shape, layout, Links(machine), framework, own, dtype, seq_tokens)
