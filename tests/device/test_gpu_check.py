"""What is measured on GPUs, in small on the simulated accelerator; ``make gpu`` runs it on GPUs."""

import warnings
from contextlib import nullcontext

import pytest

import pipekit as pk
from experiments.gpu import check
from experiments.gpu.check import BATCHES, METHODS, MICROBATCHES, STAGES, batch, network
from tests.device.kind import on

ROWS = 2


@pytest.mark.devices
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_the_peaks_of_stages_are_near_their_prediction(method: str, devices: int) -> None:
    width, places = 32, on(devices, STAGES)
    with warnings.catch_warnings():  # of times, which are not looked at here
        warnings.simplefilter("ignore")
        measured = pk.profile(network(width), batch(ROWS)[0], places[0], repeats=2)
    pipe = check.pipeline(width, method, places)
    batches = [batch(ROWS * MICROBATCHES)] * BATCHES
    here = pk.measure_memory(pipe.train(batches, watch=pk.Watch(memory=True)))
    plan = pk.Plan.by_hand(pipe.balance or [], rows=ROWS)
    schedule = METHODS[method].take(BATCHES)
    there = pk.simulate(schedule, measured, plan, optimizer_states=1).memory
    assert there is not None
    assert here.peak_bytes == pytest.approx(there.peak_bytes, rel=0.05)


@pytest.mark.devices
def test_pipelines_are_timed_beside_the_unsplit_model() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "milliseconds", lambda train, _: 1.0 if train(1) else 2.0)
        patch.setattr(check, "METHODS", {"1F1B": METHODS["1F1B"]})
        patch.setattr(check, "tables", lambda *_: {})
        # Other processes know no such device.
        patch.setattr(check, "crew", lambda *_: nullcontext())
        found = check.speed(on(2, STAGES), 32, ROWS)
    assert [who.partition(",")[0] for who in found["who"]] == ["unsplit", "1F1B", "1F1B"]
