import sys
import tempfile
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from pipekit.ledger.batches.kernels import ThisInterpreter

ASKED = {
    "python": "__import__('sys').executable",
    "exposed": "__import__('tests.engine.transports.test_loopback', fromlist='_').exposed()",
}


def test_a_kernel_of_this_python_is_spoken_to_through_sockets_of_its_own(repository: Path) -> None:
    manager = ThisInterpreter()
    manager.start_kernel(cwd=str(repository))
    client: BlockingKernelClient = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        answer = client.execute_interactive("", user_expressions=ASKED)["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    found = {
        name: asked["data"]["text/plain"] for name, asked in answer["user_expressions"].items()
    }
    assert found == {"python": repr(sys.executable), "exposed": "0"}
    assert manager.transport == "ipc"
    folder = Path(manager.connection_file).parent
    assert not list(folder.iterdir()), "neither sockets nor the file that names them stay"


def test_where_paths_are_too_long_for_sockets_it_listens_to_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    manager = ThisInterpreter()
    assert (manager.transport, manager.ip) == ("tcp", "127.0.0.1")
