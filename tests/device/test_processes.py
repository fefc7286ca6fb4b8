"""Worker processes on accelerators, linked by what these have of their own: NCCL between GPUs.

They do not run on the simulated accelerator.  Each process would have one of its own, whose memory
is the process's: what takes the place of NCCL would have to carry tensors from one to the other, and
the detector, whose clocks are those of one process's threads, would see neither.  What the processes
do with torch.distributed is therefore run in threads (test_distributed.py), and how they are started
is the CPU's way; both together are run here, where there are two GPUs.
"""

import pytest

from pipekit.devices import device_count
from tests.device.kind import KIND, SIMULATED, on
from tests.device.test_pipeline import build, skipping
from tests.engine.examples import METHODS, data, different


@pytest.mark.skipif(SIMULATED, reason="worker processes have no simulated accelerator in common")
@pytest.mark.parametrize("method", ["flush", "2bw"])
def test_processes_train_as_threads_do(method: str) -> None:
    devices = 1 if KIND == "cpu" else 2
    if KIND != "cpu" and device_count(KIND) < 2:
        pytest.skip("NCCL gives no two processes the same GPU, and there is one")
    found = []
    for transport in ("threads", "distributed"):
        pipeline = build(
            skipping(),
            METHODS[method].schedule(2, 4),
            on(devices, 2),
            balance=[4, 4],
            transport=transport,
        )
        losses = [loss for _ in range(2) for loss in pipeline.train(data(3)).losses]
        found.append((losses, {n: tensor.cpu() for n, tensor in pipeline.state_dict().items()}))
        pipeline.close()
    assert found[0][0] == found[1][0]
    assert different(found[0][1], found[1][1]) == []
