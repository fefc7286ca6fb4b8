"""Constants and intervals of machines that were fitted, and of those that were not."""

import pytest

from pipekit.performance.constants import NEW_DEVICE, Constants, Fit, Fits, fitted
from pipekit.performance.devices import machine
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.shapes import shape
from pipekit.performance.training import MEGATRON_CORE, training

ONE, OTHER = (Fit(Constants(0.5, 1e-6), {each: ["row"]}) for each in ("plain", "mixed"))
FITS = Fits(
    {"Made on one": ONE, "Made on other": OTHER},
    {
        "plain": {"all": 0.2},
        "mixed": {"dense": 0.1, "experts": 0.3, NEW_DEVICE: 0.25},
        "away": {"all": 0.9},
    },
)


def test_a_training_has_the_constants_of_its_machine() -> None:
    layout = ParallelLayout(tp=2, pp=4, dp=8, microbatches=16, zero=1)
    run = training(shape("llama3-8b"), layout, machine("H100"), MEGATRON_CORE, seq_tokens=8192)
    assert run.constants == fitted().constants("Megatron-Core on H100")


def test_a_machine_without_rows_has_its_frameworks_median() -> None:
    fits = fitted()
    unseen = fits.constants("Megatron-Core on MI300X")
    known = [fit.constants for name, fit in fits.machines.items() if "Megatron-Core" in name]
    assert min(each.efficiency for each in known) <= unseen.efficiency
    assert unseen.efficiency <= max(each.efficiency for each in known)
    with pytest.raises(ValueError, match="nothing was fitted for 'alone on H100'"):
        fits.constants("alone on H100")


@pytest.mark.parametrize(
    ("machine", "kind", "half"),
    [
        ("Made on one", "dense", 0.2),
        ("Made on other", "dense", 0.1),
        ("Made on other", "experts", 0.3),
        ("Made on third", "dense", 0.25),  # nobody fitted it: its framework's new devices
        ("Alone on one", "dense", 0.9),  # of a framework without any: the widest
    ],
)
def test_an_interval_is_that_of_the_sets_of_its_machine(
    machine: str, kind: str, half: float
) -> None:
    assert FITS.half_width(machine, kind) == half
