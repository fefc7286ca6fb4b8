"""An estimate has seconds, their interval, and each rank's bytes beside the device's memory."""

import pytest

from pipekit.performance.constants import Constants, fitted
from pipekit.performance.devices import described, machine
from pipekit.performance.estimate import estimate, training
from pipekit.performance.frameworks import MEGATRON_CORE
from pipekit.performance.layout import Layout
from pipekit.performance.predict import step
from pipekit.performance.shapes import shape

LAYOUT = Layout(tp=2, pp=4, dp=8, microbatches=16, zero=1)


def test_an_estimate_is_the_step_with_an_interval_and_memory() -> None:
    run = training(shape("llama3-8b"), LAYOUT, machine("H100"), MEGATRON_CORE, seq_tokens=8192)
    assert run.constants == fitted().constants("Megatron-Core on H100")
    found = estimate(run)
    assert found.low_s < found.step_s == step(run).seconds < found.high_s
    assert found.step_s**2 == pytest.approx(found.low_s * found.high_s)
    assert len(found.peak_bytes) == 4
    assert found.fits


def test_what_is_larger_than_the_device_does_not_fit() -> None:
    small = described(100e12, 4, 1e12, 50e9, 10e9)
    own = Constants(0.5, 10e-6)
    run = training(
        shape("llama3-70b"), LAYOUT, small, MEGATRON_CORE, seq_tokens=4096, constants=own
    )
    assert not estimate(run).fits


def test_a_machine_without_rows_has_its_frameworks_median() -> None:
    fits = fitted()
    unseen = fits.constants("Megatron-Core on MI300X")
    known = [fit.constants for name, fit in fits.machines.items() if "Megatron-Core" in name]
    assert min(each.efficiency for each in known) <= unseen.efficiency
    assert unseen.efficiency <= max(each.efficiency for each in known)
    with pytest.raises(ValueError, match="nothing was fitted for 'alone on H100'"):
        fits.constants("alone on H100")
