"""What is predicted of a training: seconds with an interval, and memory of each rank."""

import math
from dataclasses import dataclass

from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import Machine
from pipekit.performance.frameworks import Framework
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import Shape
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import TrainingSetup, on


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


def estimate(run: TrainingSetup) -> Estimate:
    """Return what is predicted of a training; its interval is that of its machine's sets.

    Raises:
        ValueError: the layout does not suit the model.
    """
    half = fitted().half_width(run.machine)
    seconds, peaks = step(run).seconds, tuple(peak_bytes(run))
    fits = max(peaks) <= run.links.machine.device.memory_bytes
    low, high = (seconds * math.exp(sign * half) for sign in (-1, 1))
    return Estimate(seconds, low, high, peaks, fits)


def training(
    shape: Shape,
    layout: ParallelLayout,
    machine: Machine,
    framework: Framework,
    *,
    seq_tokens: int,
    dtype: str = "bfloat16",
    constants: Constants | None = None,
) -> TrainingSetup:
    """Return a training by the constants that were fitted for its framework and device."""
    own = constants or fitted().constants(on(framework, machine))
    return TrainingSetup(shape, layout, Links(machine), framework, own, dtype, seq_tokens)
