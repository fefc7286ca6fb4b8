import pytest
import torch

from pipekit.clusters import local


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_gpu")
def test_a_cpu_is_shared_out_among_workers() -> None:
    cluster = local(2)
    (link,) = cluster.levels
    assert cluster.workers == 2
    assert list(cluster.device.peak_flops) == ["float32"]
    assert 1e9 < cluster.device.peak_flops["float32"] < 1e14
    assert 1e8 < link.used_bandwidth < 1e13
    assert link.shared
    assert link.effective is not None
    assert 0 < link.latency_s < 0.1
    assert "measured here" in str(cluster)
    assert "nominal" not in str(cluster)


@pytest.mark.usefixtures("no_gpu")
def test_measuring_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    local(1)
    assert torch.get_num_threads() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_in_every_dtype_and_shared_out() -> None:
    gpus = torch.cuda.device_count()
    cluster, halves = local(), local(2 * gpus)
    assert (cluster.workers, halves.workers) == (gpus, 2 * gpus)
    assert set(cluster.device.peak_flops) == {"float32", "float16", "bfloat16"}
    assert halves.device.memory_bytes == cluster.device.memory_bytes / 2
