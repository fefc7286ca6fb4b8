"""No worker on this machine listens where another machine could reach it."""

import ipaddress
import os
import socket
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipekit import schedules
from tests.engine.examples import pipeline
from tests.engine.gloo import over_gloo

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux")


def listening(process: int | str = "self") -> dict[int, str]:
    """Return the address of every TCP port that a process listens on."""
    files = [*Path(f"/proc/{process}/fd").iterdir()]
    own = {os.readlink(file) for file in files if file.is_symlink()}
    ports = {}
    for table in "tcp", "tcp6":
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                address, port = local.split(":")
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                ports[int(port, 16)] = str(ipaddress.ip_address(b"".join(words)))
    return ports


def exposed(process: int | str = "self") -> int:
    """Return how many ports of a process are open to other machines, but for torch's own store.

    Who starts ``torchrun`` tells that store its address and port.
    """
    store = int(os.environ.get("MASTER_PORT", 0))
    return sum(
        not ipaddress.ip_address(a).is_loopback for p, a in listening(process).items() if p != store
    )


class Exposed(nn.Linear):
    """Adds to what goes by the ports that its worker has open."""

    def forward(self, x: Tensor) -> Tensor:
        return x + exposed()


def exposed_in_all_workers(transport: str) -> float:
    layers = nn.Sequential(Exposed(1, 1), Exposed(1, 1))
    pipe = pipeline(layers, schedules.gpipe(2, 1), [1, 1], transport=transport)
    return pipe.evaluate([(torch.zeros(1, 1), torch.zeros(1, 1))], lambda x, _: x.sum().item())


def under_torchrun() -> tuple[float, int]:
    del os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
    return exposed_in_all_workers("distributed"), len(listening())


def test_an_open_port_would_be_seen() -> None:
    before = exposed()
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("127.0.0.1", 0)) as private:
        assert exposed() == before + 1
        assert listening()[private.getsockname()[1]] == "127.0.0.1"


def test_processes_started_here() -> None:
    assert exposed_in_all_workers("distributed") == 0


def test_processes_of_torchrun_on_one_machine() -> None:
    for found, ports in over_gloo(under_torchrun, 2):
        assert found == 0
        assert ports, "gloo listens"
