"""What once went wrong on several devices, a test each (those not here: see the other files)."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pipekit as pk
from pipekit import devices, schedules
from pipekit.engine.transports import torchrun
from pipekit.engine.transports.threads import ThreadNetwork, ThreadWorker
from pipekit.engine.updates.all_reduce import AllReduce, ReduceKey
from pipekit.engine.updates.weights import Bucket
from tests.device.kind import on
from tests.device.simulated.process import simulated
from tests.device.test_distributed import with_lengths
from tests.device.test_pipeline import STAGES, build, by_method
from tests.device.test_pipelined_module import streams_of_their_own
from tests.engine.examples import data, different, mixed, mlp


def flushed(model: nn.Sequential, places: list[str], batches: Any, **how: Any) -> dict[str, Tensor]:
    pipeline = build(model, by_method("flush"), places)
    pipeline.train(batches, watch=pk.Watch(**how))
    return dict(pipeline.state_dict())


# --- what a run leaves


def test_weights_may_be_read_as_soon_as_a_run_returns() -> None:
    """In whatever stream; without a trace, nothing else waits for the last update."""
    pipeline = build(mixed(), by_method("flush"), on(2, STAGES))
    pipeline.train(data(2), watch=pk.Watch(trace=False))
    with torch.Stream("sim:0"), torch.Stream("sim:1"):
        assert len(pipeline.state_dict()) == len(mixed().state_dict())
    pipeline.evaluate(data(1))


# --- torchrun


def test_a_process_joins_with_its_own_device() -> None:
    with pytest.MonkeyPatch.context() as patch:
        _join(patch)


def _join(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "init_process_group", lambda **kwargs: given.update(kwargs))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr(torchrun, "rendezvous", lambda _: iter([(store, 1, 2)]))
    monkeypatch.setitem(dist.Backend.default_device_backend_map, "sim", "simccl")
    places = [torch.device("sim:0"), torch.device("sim:3")]
    try:
        assert torchrun._join_group(places) == 1
        assert torch.empty(0, device="sim").device == places[1]
        torch.accelerator.set_device_index(0)
        monkeypatch.setattr(dist, "is_initialized", lambda: True)  # by the program, say
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        torchrun._join_group(places)
        assert torch.empty(0, device="sim").device == places[1]
    finally:
        torch.accelerator.set_device_index(0)
    assert given["device_id"] == places[1]
    assert given["backend"] == "cpu:gloo,sim:simccl"


def test_each_worker_has_its_device_for_current_one() -> None:
    class Where(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert torch.zeros(1, device=x.device.type).device == x.device
            return x

    layers = [layer for width in (6, 6, 6, 6) for layer in (nn.Linear(6, width), Where())]
    run = build(nn.Sequential(*layers), by_method("flush"), on(4, STAGES)).train(
        [(torch.randn(8, 6), torch.randn(8, 6))]
    )
    assert set(run.trace.frame["worker"]) == set(range(4))  # events of each, on its own device


# --- memory that several streams use


def test_a_bucket_is_filled_again_only_when_its_reader_is_done() -> None:
    """The optimizer reads the sum in one stream; the next gradients come in another one."""
    weight = torch.zeros(4, device="sim:0")
    bucket = Bucket([0], [weight])
    compute, sums = torch.Stream("sim:0"), torch.Stream("sim:0")
    gradients = [torch.full((4,), float(n), device="sim:0") for n in range(4)]
    torch.accelerator.synchronize("sim:0")
    read = []
    for gradient in gradients:
        with sums:
            content = bucket.flat([gradient])
            summed = sums.record_event()
        with compute:
            compute.wait_event(summed)
            devices.keep_for_current_stream(content.numbers)
            read.append(weight + content.numbers)
            bucket.lend(content)
    torch.accelerator.synchronize("sim:0")
    assert [total.tolist() for total in read] == [[float(n)] * 4 for n in range(4)]


@pytest.mark.parametrize("places", [("sim:0", "sim:0"), ("sim:0", "sim:1")])
def test_a_part_of_a_sum_may_be_freed_by_either_end(places: tuple[str, str]) -> None:
    workers = [ThreadWorker(torch.device(place)) for place in places]
    network = ThreadNetwork([0, 1], workers)
    sums: dict[int, list[float]] = {}

    def add_up(index: int) -> None:
        with devices.on_stream(workers[index].stream):
            exchange = network.transport(index).exchange_among([0, 1], tied=True)
            reduce = AllReduce([0, 1], index, exchange)
            bucket = Bucket([0], [torch.ones(8, device=places[index])])
            for number in range(4):
                own = bucket.flat([torch.full((8,), float(index + number), device=places[index])])
                numbers = reduce.sum(ReduceKey(0, number, [0, 1]), own).numbers
                del own
                other = torch.full((4,), -1.0, device=places[index])  # takes what was freed
                other += numbers.sum()
            devices.synchronize(workers[index].device)
            sums[index] = numbers.tolist()

    threads = [threading.Thread(target=add_up, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {0: [7.0] * 8, 1: [7.0] * 8}


def test_replicas_are_copied_before_their_workers_compute() -> None:
    """Batch norm's statistics are copied for every run, in the caller's stream."""
    schedule = schedules.replicate(schedules.flush(2, 2), 2)
    state = []
    for places in (["cpu"] * 4, on(2, 4)):
        pipeline = build(mixed(), schedule, places, balance=[4, 4])
        for _ in range(3):
            pipeline.train(data(1), watch=pk.Watch(trace=False))
        state.append(dict(pipeline.state_dict()))
    assert different(*state) == []


def test_a_loader_computes_on_the_device_and_forgets_at_once() -> None:
    """In the streams of whoever calls ``train``, from what he has computed there just before."""

    def made(kind: str, two: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in data(4):
            x, y = (t.pin_memory().to(kind, non_blocking=True) for t in (x, y))
            yield x * two, y + two
            torch.full((8, 6), -1.0, device=kind)  # takes what was freed

    states = []
    for kind, places in (("cpu", ["cpu"] * STAGES), ("sim:1", on(2, STAGES))):
        pipeline = build(mixed(), by_method("flush"), places)
        with streams_of_their_own(["sim:0", "sim:1"]):
            for number in range(2):  # the first one tries the model first, for which all waits
                two = torch.ones((), device=kind) * number * 2
                pipeline.train(_Sized(made(kind, two), 4), watch=pk.Watch(trace=False))
        states.append(dict(pipeline.state_dict()))
    assert different(*states) == []


def test_batches_are_read_in_the_streams_of_whoever_calls_train() -> None:
    """They may be made of what is on its way there, whichever worker's thread reads them."""
    found = []

    def made() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in data(4):
            found.append(torch.accelerator.current_stream("sim:1"))
            yield batch

    with streams_of_their_own(["sim:0", "sim:1"]):
        own = torch.accelerator.current_stream("sim:1")
        flushed(mixed(), on(2, STAGES), _Sized(made(), 4), trace=False)
    assert found == [own] * 4


class _Sized:
    def __init__(self, batches: Iterator[Any], length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._batches


# --- devices by name, and tensors that stay on the host


def test_what_lies_on_the_host_stays_there() -> None:
    batches = data(3)
    cpu = flushed(with_lengths(), ["cpu"] * STAGES, batches)
    assert different(cpu, flushed(with_lengths(), on(4, STAGES), batches)) == []


def test_a_device_without_a_number_is_the_threads_current_one() -> None:
    torch.accelerator.set_device_index(2)
    try:
        assert devices.resolve("sim") == torch.device("sim:2")
        assert devices.resolve_for_workers(["sim", "sim:1"], 2) == [
            torch.device("sim:2"),
            torch.device("sim:1"),
        ]
        state = flushed(mixed(), ["sim"] * STAGES, data(1))
        assert different(flushed(mixed(), ["cpu"] * STAGES, data(1)), state) == []
    finally:
        torch.accelerator.set_device_index(0)


def test_devices_of_two_kinds_are_refused() -> None:
    for make in (
        lambda: build(mixed(), by_method("flush"), ["sim:0", "cpu", "sim:1", "cpu"]),
        lambda: pk.PipelinedModule(mixed(), [4, 4], chunks=2, devices=["sim:0", "cpu"]),
    ):
        with pytest.raises(ValueError, match=r"several kinds \(cpu, sim\).*name devices of one"):
            make()


def test_accelerators_are_those_that_are_here() -> None:
    """PyTorch's "current" one is what it was built for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
        found = devices.accelerators()
    assert found == [torch.device("sim", index) for index in range(4)]


# --- a pipelined module in the middle of something


def test_a_pipelined_module_within_a_reentrant_checkpoint() -> None:
    """Autograd then calls its backward in the thread that it has for the device."""
    gradients = []
    for kind in ("cpu", "sim:0"):
        torch.manual_seed(0)
        inner = pk.PipelinedModule(mlp(6, 6, 6), [1, 1], chunks=2, devices=[kind] * 2)
        x = torch.ones(4, 6, device=kind, requires_grad=True)
        y = checkpoint(lambda x, inner=inner: inner(x * 2), x, use_reentrant=True)
        y.sum().backward()
        gradients.append([x.grad.cpu(), *(p.grad.cpu() for p in inner.parameters())])  # type: ignore[union-attr]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("place", ["cpu", "sim:3"])
def test_gradients_come_to_inputs_from_elsewhere(place: str) -> None:
    """In whatever stream they were made: autograd then has it wait."""
    model = mlp(6, 6, 3)
    expected = data(1)[0][0].requires_grad_()
    model(expected * 2).sum().backward()
    module = pk.PipelinedModule(model, [1, 1], chunks=2, devices=["sim:0", "sim:1"])
    given = data(1)[0][0].to(place).requires_grad_()
    made = torch.Stream("sim:3")
    with made:
        made.wait_stream(torch.accelerator.current_stream("sim:3"))
        x = given * 2
    torch.accelerator.current_stream("sim:3").wait_stream(made)
    y = module(x).sum()
    with torch.Stream("sim:3"), torch.Stream("sim:1"), torch.Stream("sim:0") as last:
        y.backward()
        last.synchronize()
    torch.accelerator.synchronize("sim:3")
    assert given.grad is not None
    assert given.grad.device == given.device
    assert expected.grad is not None
    assert torch.equal(given.grad.cpu(), expected.grad)


# --- what workers need not wait for


def waits(kind: str, batches: int, **how: Any) -> int:
    """How often it happened in a training; the second one, which builds nothing."""
    options: Any = {name: how.pop(name) for name in ("trace", "progress") if name in how}
    pipeline = build(mlp(6, 6, 6, 6, 3), by_method("flush"), on(2, STAGES), balance=[1] * 4, **how)
    pipeline.train(data(batches), watch=pk.Watch(trace=False))
    simulated().settle()
    pipeline.train(data(batches), watch=pk.Watch(**{"trace": False, **options}))
    return int(simulated().calls(kind))


@pytest.mark.parametrize("how", [{}, {"clip_norm": 0.1}, {"progress": True}], ids=str)
def test_the_host_does_not_wait_for_an_accelerator(how: dict[str, Any]) -> None:
    """But for the losses, at the end."""
    batches = data(5)
    microbatches = 4
    more, less = (waits("host waits", n, **how) - n * microbatches for n in (len(batches), 2))
    assert more == less


def test_a_loss_scale_is_asked_for_once_an_update() -> None:
    more, less = (waits("host waits", n, loss_scale="dynamic") - 4 * n for n in (5, 2))
    assert more - less == 3 * STAGES


def test_no_event_is_timed_without_a_trace() -> None:
    assert waits("timed record", 2) == 0
    assert waits("timed record", 2, trace=True) > 0


def test_a_copy_holds_up_no_other_stream_of_its_target() -> None:
    """Were the default stream to wait for it, it could read what the copy waited for."""
    x = torch.ones(4, device="sim:0")
    side = torch.Stream("sim:0")
    side.wait_stream(torch.accelerator.current_stream("sim:0"))
    with devices.on_stream(side):
        x.mul_(2)
        devices.Copier(torch.device("sim:0")).copy(x, torch.device("sim:1"))
    default = torch.accelerator.current_stream("sim:1")
    torch.accelerator.current_stream("sim:0").wait_event(default.record_event())
    x.add_(1)
    assert simulated().take_races(), "the default stream of the target has waited for the copy"
    torch.accelerator.synchronize("sim:0")
