"""What ``make gpu`` measures on GPUs, in small on the simulated accelerator."""

import pytest

from experiments.gpu import check, peers
from experiments.gpu.peers import METHODS, STAGES
from tests.device.kind import on


@pytest.mark.devices
@pytest.mark.parametrize("devices", [1, 4])
def test_memory_is_near_its_prediction(devices: int) -> None:
    assert check.memory(on(devices, STAGES), 32, 2)


@pytest.mark.devices
def test_pipelines_are_timed_beside_the_unsplit_model() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "milliseconds", lambda train, _: 1.0 if train(1) else 2.0)
        patch.setattr(check, "METHODS", {"1F1B": METHODS["1F1B"]})
        patch.setattr(peers, "tables", lambda *_: {})  # its processes know no such device
        found = check.speed(on(2, STAGES), 32, 2)
    assert [who.partition(",")[0] for who in found] == ["unsplit", "1F1B", "1F1B"]
