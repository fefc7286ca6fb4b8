"""Small programs with several streams, in which each synchronisation can be left out by its name."""

import threading
import time
from collections.abc import Callable
from queue import Queue, SimpleQueue

import torch
from torch import Tensor

Keep = Callable[[str], bool]
Program = Callable[[Keep], object]


def _current(device: int) -> torch.Stream:
    return torch.accelerator.current_stream(f"sim:{device}")


def _ones(device: int) -> Tensor:
    x = torch.ones(8, device=f"sim:{device}")
    torch.accelerator.synchronize(f"sim:{device}")
    return x


def read_elsewhere(keep: Keep) -> object:
    """One stream writes, another reads what it wrote, and the first overwrites it."""
    x, side = _ones(0), torch.Stream("sim:0")
    x.mul_(2)
    ready = _current(0).record_event()
    with side:
        if keep("wait until written"):
            side.wait_event(ready)
        y = x + 1
    if keep("wait until read"):
        _current(0).wait_stream(side)
    x.zero_()
    side.synchronize()
    return y.tolist()


def read_by_item(keep: Keep) -> object:
    """``item()`` waits for the current stream and for no other."""
    side = torch.Stream("sim:0")
    x = _ones(0)
    with side:
        total = x.sum()
    if keep("wait before item"):
        _current(0).wait_stream(side)
    return total.item()


def freed_buffer(keep: Keep) -> object:
    """A buffer that another stream uses is freed; its memory is given out again in its own."""
    x, side = _ones(0), torch.Stream("sim:0")
    with side:
        y = x * 2
    if keep("record_stream"):
        x.record_stream(side)
    del x
    z = torch.zeros(8, device="sim:0")
    side.synchronize()
    return y.tolist(), z.tolist()


def freed_by_another_thread(keep: Keep) -> object:
    """A thread waits for the other stream and frees the buffer; nobody tells its owner so."""
    held, side = [_ones(0)], torch.Stream("sim:0")

    def use_and_free() -> None:
        with side:
            held[0].mul_(2)
        if keep("wait before it is freed"):
            side.synchronize()
        held.clear()

    thread = threading.Thread(target=use_and_free)
    thread.start()
    while held:
        time.sleep(1e-3)
    z = torch.full((8,), 3.0, device="sim:0")
    thread.join()
    side.synchronize()
    return z.tolist()


def fresh_buffer(keep: Keep) -> object:
    """Memory from one stream's allocator is used in another: its earlier use must be over."""
    side = torch.Stream("sim:0")
    old = torch.ones(8, device="sim:0")
    old.mul_(2)
    del old
    new = torch.empty(8, device="sim:0")
    if keep("wait for the allocating stream"):
        side.wait_stream(_current(0))
    with side:
        new.fill_(1)
    side.synchronize()
    return new.tolist()


def fetch(keep: Keep) -> object:
    """An asynchronous copy to the host is waited for before the host looks."""
    fetched = _ones(0).to("cpu", non_blocking=True)
    copied = _current(0).record_event()
    if keep("wait before the host reads"):
        copied.synchronize()
    return fetched.sum()


def staging(keep: Keep) -> object:
    """Two batches go to the device by one pinned buffer of the host."""
    buffer, there = torch.zeros(8).pin_memory(), []
    for number in range(2):
        buffer.fill_(number)
        there.append(buffer.to("sim:0", non_blocking=True))
        if keep("wait before the buffer is filled again"):
            _current(0).synchronize()
    return [x.tolist() for x in there]


def across_devices(keep: Keep) -> object:
    """A copy beside the computing of both devices, as a pipeline sends its activations."""
    compute, leaving = _current(0), torch.Stream("sim:0")
    arriving, consumer = torch.Stream("sim:1"), torch.Stream("sim:1")
    x = _ones(0) * 2
    if keep("wait until computed"):
        leaving.wait_stream(compute)
    with arriving, leaving:
        there = x.to("sim:1", non_blocking=True)
        if keep("keep the sent tensor for the copy"):
            x.record_stream(leaving)
        sent = leaving.record_event()
    del x
    y = torch.zeros(8, device="sim:0")
    with consumer:
        if keep("wait until arrived"):
            consumer.wait_event(sent)
        if keep("keep the arrived tensor for its reader"):
            there.record_stream(consumer)
        z = there + 1
        del there
    with arriving:
        other = torch.zeros(8, device="sim:1")
    for stream in (compute, arriving, consumer):
        stream.synchronize()
    return y.tolist(), z.tolist(), other.tolist()


def between_threads(keep: Keep) -> object:
    """A thread hands a tensor over by a queue, with an event or after it has waited itself."""
    queue: SimpleQueue[tuple[Tensor, torch.Event]] = SimpleQueue()
    answers: Queue[Tensor] = Queue()

    def produce() -> None:
        with torch.Stream("sim:0") as own:
            x = torch.ones(8, device="sim:0") * 2
            queue.put((x, own.record_event()))
            answer = answers.get()
            (answer * 2).tolist()

    thread = threading.Thread(target=produce)
    thread.start()
    x, ready = queue.get()
    if keep("wait for the event"):
        _current(0).wait_event(ready)
    answer = x + 1
    if keep("wait before the answer"):
        torch.accelerator.synchronize("sim:0")
    answers.put(answer)
    thread.join()
    return answer.tolist()


def gradient_from_elsewhere(keep: Keep) -> object:
    """The gradient that a backward begins with was made in another stream than is current."""
    w = torch.ones(8, device="sim:0", requires_grad=True)
    forward, backward, arriving = (torch.Stream("sim:0") for _ in range(3))
    torch.accelerator.synchronize("sim:0")
    with forward:
        y = w * 2
    with arriving:
        gradient = torch.full((8,), 3.0, device="sim:0")
    if keep("wait until the gradient is there"):
        backward.wait_stream(arriving)
    with backward:
        y.backward(gradient)
    if keep("wait until the backward is over"):
        _current(0).wait_stream(backward)
    assert w.grad is not None
    return w.grad.tolist()


def gradients_summed(keep: Keep) -> object:
    """Two devices sum a bucket on threads of their own, beside the backward."""
    queues: list[Queue[tuple[Tensor, torch.Event]]] = [Queue(), Queue()]
    sums: list[object] = [None, None]

    def worker(index: int) -> None:
        device = torch.device("sim", index)
        compute, comm = torch.Stream(device), torch.Stream(device)
        with compute:
            gradient = torch.ones(8, device=device) * (index + 1)
            computed = compute.record_event()
        with comm:
            if keep("wait for the gradient"):
                comm.wait_event(computed)
            part = gradient.clone()
            queues[1 - index].put((part, comm.record_event()))
            others, ready = queues[index].get()
            with torch.Stream(others.device) as leaving:
                if keep("wait for the other's part"):
                    leaving.wait_event(ready)
                total = part + others.to(device)
            gradient.copy_(total)
            summed = comm.record_event()
        with compute:
            if keep("wait for the sum"):
                compute.wait_event(summed)
            result = gradient * 10
        compute.synchronize()
        comm.synchronize()
        leaving.synchronize()
        sums[index] = result.tolist()

    threads = [threading.Thread(target=worker, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


# Each program, and the synchronisations that can be left out of it.
PROGRAMS: dict[Program, tuple[str, ...]] = {
    read_elsewhere: ("wait until written", "wait until read"),
    read_by_item: ("wait before item",),
    freed_buffer: ("record_stream",),
    freed_by_another_thread: ("wait before it is freed",),
    fresh_buffer: ("wait for the allocating stream",),
    fetch: ("wait before the host reads",),
    staging: ("wait before the buffer is filled again",),
    across_devices: (
        "wait until computed",
        "keep the sent tensor for the copy",
        "wait until arrived",
        "keep the arrived tensor for its reader",
    ),
    between_threads: ("wait for the event", "wait before the answer"),
    gradient_from_elsewhere: (
        "wait until the gradient is there",
        "wait until the backward is over",
    ),
    gradients_summed: ("wait for the gradient", "wait for the other's part", "wait for the sum"),
}
