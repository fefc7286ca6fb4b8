"""Workers in network namespaces: what they see, how fast their links are, and what they leave."""

import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipekit.clusters.namespaces import available, burst_bytes, bytes_per_second, call, run

LIMIT_S = 100
REASON = available()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def sleep() -> Iterator[str]:
    """A command that runs for long; afterwards nothing may be left of it, nor of any network."""
    command = f"sleep 1000.{random.SystemRandom().randrange(10**9)}"
    networks = _networks()
    yield command
    deadline = time.monotonic() + LIMIT_S  # after a kill -9 of ours, the kernel cleans up by itself
    while (_running(command) or _networks() != networks) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _running(command) == []
    assert _networks() == networks


def _networks() -> list[str]:
    """Return the names of the host's namespaces and interfaces."""
    commands = ["ip", "netns", "list"], ["ip", "-brief", "link"]
    texts = [subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in commands]
    return [line.split()[0] for text in texts for line in text.splitlines()]


def _running(command: str) -> list[str]:
    """Return the command lines that contain a command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended meanwhile
            continue
        if command in line:
            found.append(line)
    return found


@needs_namespaces
def test_a_function_is_called_on_all_workers_and_what_fails_is_told() -> None:
    def number(failing: bool) -> tuple[int, int]:
        import torch.distributed as dist

        if failing:
            raise ValueError(f"{dist.get_rank()} is here")
        return dist.get_rank(), dist.get_world_size()

    assert call(number, 2, None, False) == (0, 2)
    with pytest.raises(RuntimeError, match="ValueError: 0 is here"):
        call(number, 1, None, True)


@needs_namespaces
def test_a_worker_has_torchruns_environment_its_own_interface_and_our_folder(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = """
        echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT
        pwd
        test $NCCL_SOCKET_IFNAME = $GLOO_SOCKET_IFNAME
        ip -4 -brief address show dev $GLOO_SOCKET_IFNAME | grep -o '10[.0-9/]*'
        ls /sys/class/net
        tc qdisc show dev $GLOO_SOCKET_IFNAME | grep -o 'rate [^ ]*' >&2
    """
    assert run(["sh", "-ec", script], 2, "300mbit") == 0
    printed = capfd.readouterr()
    for rank in range(2):
        ours = [line for line in printed.out.splitlines() if line.startswith(f"[{rank}] ")]
        environment = f"{rank} {rank} 2 2 10.0.0.1 29500"
        expected = [environment, str(tmp_path), f"10.0.0.{rank + 1}/16", "eth0", "lo"]
        assert ours == [f"[{rank}] {line}" for line in expected]
    assert sorted(printed.err.splitlines()) == ["[0] rate 300Mbit", "[1] rate 300Mbit"]


TRANSFER = """
    import os, socket, time

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with socket.create_server(address) as server:
            other, _ = server.accept()
        for _ in range(3):
            start = time.perf_counter()
            other.sendall(bytes(8_000_000))
            other.recv(1)
            print(time.perf_counter() - start)
    else:
        while True:
            try:
                other = socket.create_connection(address)
                break
            except ConnectionRefusedError:  # it does not listen yet
                time.sleep(0.01)
        for _ in range(3):
            left = 8_000_000
            while left:
                left -= len(other.recv(left))
            other.send(b"!")
"""


@needs_namespaces
@pytest.mark.slow
def test_a_transfer_takes_the_links_time(capfd: pytest.CaptureFixture[str]) -> None:
    rate = "200mbit"
    assert run([sys.executable, "-c", textwrap.dedent(TRANSFER)], 2, rate) == 0
    printed = capfd.readouterr()
    seconds = [float(line.removeprefix("[0] ")) for line in printed.out.splitlines()]
    assert len(seconds) == 3
    physics = (8_000_000 - burst_bytes(rate)) / bytes_per_second(rate)
    assert physics < min(seconds)  # without the link it would be physics / 30
    assert printed.err == ""


@needs_namespaces
@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_a_failure_ends_the_others(
    sleep: str, end: str, code: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    all_run = f"until [ -e {tmp_path}/0 ] && [ -e {tmp_path}/2 ]; do sleep 0.01; done"
    fail = f'if [ $RANK = 1 ]; then {all_run}; echo "sorry" >&2; {end}; fi'
    script = f"touch {tmp_path}/$RANK; {fail}; {sleep}"
    assert run(["sh", "-c", script], 3, "1gbit") == code
    assert capfd.readouterr().err == "[1] sorry\n"


@needs_namespaces
def test_what_a_worker_leaves_is_ended(sleep: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["sh", "-c", f"{sleep} & printf done"], 2) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] done", "[1] done"]


@needs_namespaces
@pytest.mark.slow
def test_nothing_is_left_when_we_are_killed(sleep: str, repository: Path) -> None:
    command = ["sh", "-c", f"echo started; {sleep}"]
    program = f"from pipekit.clusters.namespaces import run; run({command}, 2, '1gbit')"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert sorted(parent.stdout.readline() for _ in range(2)) == [
            "[0] started\n",
            "[1] started\n",
        ]
        parent.kill()
        parent.wait(LIMIT_S)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no command"):
        run([], 2)
    with pytest.raises(ValueError, match="1 to 1000 workers, not 0"):
        run(["true"], 0)


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(OSError, match="need root: sudo env"):
        run(["true"], 2)
    assert "need root" in str(available())


def test_where_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    for tool in ("ip", "tc", "unshare", "nsenter"):
        (tmp_path / tool).write_text("#!/bin/sh\necho no, not for you >&2\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    assert "refuses network namespaces (no, not for you)" in str(available())


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("8bit", 1), ("64kbit", 8e3), ("500mbit", 62.5e6), ("2.5Gbit", 312.5e6), ("1tbit", 125e9)],
)
def test_rates_are_read_as_bytes_per_second(rate: str, expected: float) -> None:
    assert bytes_per_second(rate) == expected


@pytest.mark.parametrize("rate", ["", "1", "gbit", "1gbps", "-1gbit", "0mbit"])
def test_another_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match=f"'500mbit', '1gbit' or '2.5gbit', not '{rate}'"):
        bytes_per_second(rate)
