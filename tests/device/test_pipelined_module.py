"""The pipelined module on the simulated accelerator: the CPU's bits, and no race."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from tests.device.kind import careful, on, to_compare
from tests.device.test_pipeline import skipping
from tests.engine.examples import data, different, images, mixed


@contextmanager
def streams_of_their_own(devices: list[str]) -> Iterator[None]:
    """Another stream of each device, which waits for the present one, and the other way round."""
    with ExitStack() as stack:
        for device in devices:
            now, other = torch.accelerator.current_stream(device), torch.Stream(device)
            other.wait_stream(now)
            stack.callback(now.wait_stream, other)
            stack.enter_context(other)
        yield


def train(
    model: Callable[[], nn.Sequential],
    devices: list[str],
    streams: str = "",
    autocast: bool = False,
    **how: Any,
) -> tuple[list[float], dict[str, Tensor]]:
    """Train in a loop of one's own; return losses, weights and the input's last gradient.

    ``streams``: "own": the loop is in streams of its own; "backward": its backwards also in others.
    """
    torch.manual_seed(0)
    module = pk.PipelinedModule(model(), [2, 2, 2, 2], chunks=3, devices=devices, **how)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, foreach=False)
    losses, kind = [], torch.device(devices[0]).type
    places = list(dict.fromkeys(devices)) if streams and kind != "cpu" else []
    with streams_of_their_own(places):
        for x, y in data(3):
            given = x.to(devices[0]).requires_grad_()
            optimizer.zero_grad()
            with torch.autocast(kind, torch.bfloat16, enabled=autocast):
                loss = nn.functional.mse_loss(module(given), y.to(devices[-1]))
            with streams_of_their_own(places if streams == "backward" else []):
                loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert given.grad is not None
    module.eval()
    with torch.no_grad():
        losses.append(module(given).sum().item())
    state = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
    return losses, state | {"input": given.grad.cpu()}


def compare(devices: int, model: Callable[[], nn.Sequential] = mixed, **how: Any) -> None:
    losses, state = train(model, on(devices, 4), **how)
    cpu_losses, cpu_state = train(
        model, to_compare(4), **{"watch": pk.Watch(trace=False, **careful())} | how
    )
    if "order" in how.get("without", ()):  # autograd's threads then sum gradients as they come
        torch.testing.assert_close(state, cpu_state)
        return
    assert different(cpu_state, state) == []
    assert losses == cpu_losses


HOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "never recomputed": {"checkpoint": "never"},
    "always recomputed": {"checkpoint": "always"},
    "traced": {"watch": pk.Watch(memory=True)},
    "deferred batch norm": {"deferred_batch_norm": True},
    "autocast": {"autocast": True},
    "images": {"model": images},
    "skips": {"model": skipping},
    "from streams of one's own": {"streams": "own"},
    "backward in another stream": {"streams": "backward"},
    "without order": {"without": ["order"]},
    "without streams": {"without": ["streams"]},
    "without portals": {"model": skipping, "without": ["portals"]},
    "without streams and portals": {"model": skipping, "without": ["streams", "portals"]},
}


@pytest.mark.parametrize(("how", "devices"), list(zip(HOWS, cycle([4, 1, 2]))))
def test_a_loop_of_ones_own(how: str, devices: int) -> None:
    compare(devices, **HOWS[how])
