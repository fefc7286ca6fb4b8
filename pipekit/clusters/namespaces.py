"""Really slow links on one Linux machine: every worker in a network namespace of its own.

Each worker has a cable (a veth pair) to a common switch (a bridge).  A token bucket at either end
lets through what the link's rate allows, so that the kernel's TCP meets a slow network.

The namespaces belong to the first process of a process namespace, which only waits for the end of
its input, a pipe from us.  When we end, by whichever signal, so does that process, and the kernel
then ends all the others and takes down the network.
"""

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from ipaddress import IPv4Network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TextIO

MOST_WORKERS = 1000  # a Linux bridge has 1,024 ports
INTERFACE = "eth0"
NETWORK = IPv4Network("10.0.0.0/16")
PORT = 29500
PACKET_BYTES = 9000
"""Of the largest packets, as in data centers.  With Ethernet's 1500 six workers that send and
receive 25 MB/s each take two cores for packets alone."""
TCP = {
    "congestion_control": "reno",
    "slow_start_after_idle": "0",
    "rmem": "4096 4194304 4194304",
    "wmem": "4096 4194304 4194304",
}
"""Settings of TCP, so that links do not depend on the host's.  Every Linux has Reno; BBR takes the
pauses between messages for a slow link.  A connection goes on after a pause as before, and has room
for 4 MiB at both ends: Linux begins with less, and needs some messages to find out that it does not
suffice where acknowledgments wait behind what is sent the other way."""

# A late timer costs no bandwidth as long as the bucket does not overflow in the meantime.
BURST_S, LEAST_BURST_BYTES = 1e-3, 2**14
# What may wait for the link: enough that no small message is dropped behind several large ones.
QUEUE_S, LEAST_QUEUE_BYTES = 50e-3, 2**20

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}


def run(command: Sequence[str], workers: int, link: str | None = None) -> int:
    """Run a command once a worker, and return 0 or the exit code of the first that failed.

    The environment is what ``torchrun`` would give; gloo and NCCL are told to use the slow links.
    What workers print goes to ``sys.stdout`` and ``sys.stderr``, each line behind its worker's
    rank.  When one fails, the others are killed; when all have ended, so is what they left running.

    Args:
        link: each worker's rate in either direction, as :func:`bytes_per_second` reads it.

    Raises:
        ValueError: no command, no worker or too many, or no such rate.
        OSError: this machine or this user cannot have network namespaces.
    """
    if not command:
        raise ValueError("no command for the workers to run")
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"there can be 1 to {MOST_WORKERS} workers, not {workers}")
    with ThreadPoolExecutor(3 * workers) as pool, _network(workers, link) as inside:
        processes = [_start(command, rank, workers, inside) for rank in range(workers)]
        ends = {pool.submit(process.wait) for process in processes}
        pending = set(ends)
        for rank, process in enumerate(processes):
            for source, to in (process.stdout, sys.stdout), (process.stderr, sys.stderr):
                assert source is not None
                pending.add(pool.submit(_copy, source, to, rank))
        while pending & ends:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for code in [future.result() for future in done]:
                if code:
                    return code if code > 0 else 128 - code  # by a signal: as shells say it
    return 0


def call(function: Callable[..., Any], workers: int, link: str | None, *arguments: Any) -> Any:
    """Call a function on workers that gloo links, as :func:`run` does; return what the first does.

    A RuntimeError has what all have printed, if one fails.
    """
    import cloudpickle

    from pipekit.host.unpickling import loads

    said = StringIO()
    with TemporaryDirectory() as folder, redirect_stdout(said), redirect_stderr(said):
        path = Path(folder, "call")
        path.write_bytes(cloudpickle.dumps((function, arguments)))
        program = f"from {__name__} import answer; answer({str(path)!r})"
        if failed := run([sys.executable, "-c", program], workers, link):
            raise RuntimeError(f"a worker failed with exit code {failed}:\n{said.getvalue()}")
        return loads(path.with_suffix(".answer").read_bytes())


def answer(path: str) -> None:
    """Be one of the workers of :func:`call`."""
    import cloudpickle
    import torch.distributed as dist

    function, arguments = pickle.loads(Path(path).read_bytes())
    dist.init_process_group("gloo")
    found = function(*arguments)
    if dist.get_rank() == 0:
        Path(path).with_suffix(".answer").write_bytes(cloudpickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _require_namespaces() -> None:
    """Raise OSError, with a remedy, unless this user may make network namespaces."""
    if sys.platform != "linux":
        raise OSError(f"network namespaces exist on Linux only, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise OSError('network namespaces need root: sudo env "PATH=$PATH" pipekit cluster ...')
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise OSError(f"the program {tool} is missing: apt-get install {package}")


def available() -> str | None:
    """Return why :func:`run` cannot work here, after an attempt, or None if it can."""
    try:
        with _network(1, "1gbit"):
            return None
    except OSError as error:
        return str(error)


@contextmanager
def _network(workers: int, link: str | None) -> Iterator[list[str]]:
    """Hold a network, and give the beginning of a command line that leads into it."""
    script = "\n".join(_cables(workers, link))
    _require_namespaces()
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
    # On leaving, Popen closes the pipe and waits, and the kernel lets the first process of a
    # namespace end only after all the others.
    with subprocess.Popen(
        [*unshare, "sh", "-ec", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a terminal's Ctrl-C is for us
        text=True,
    ) as holder:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said != "ready\n":
            said += holder.stdout.read()
            raise OSError(
                f"this system refuses network namespaces ({said.strip()}): a container needs to be "
                f"started with --privileged"
            )
        own = f"/proc/{holder.pid}/ns"
        yield ["nsenter", f"--mount={own}/mnt", f"--pid={own}/pid_for_children"]


def _cables(workers: int, link: str | None) -> Iterator[str]:
    """Write the script of the first process: set up the network, say so, and hold it."""
    names = "/var/run/netns"  # where ip keeps namespaces; ours are seen from inside only
    yield f"mkdir -p {names}; mount -t tmpfs pipekit {names}"
    # torch.distributed asks for the names of its peers by IPv6, and complains about each it misses.
    hosts = "".join(f"::ffff:{NETWORK[1 + rank]} worker{rank}\n" for rank in range(workers))
    yield f"(cat /etc/hosts; echo '{hosts}') > {names}/hosts"
    yield f"mount --bind {names}/hosts /etc/hosts; rm {names}/hosts"
    yield "ip link add switch type bridge; ip link set switch up"
    for rank in range(workers):
        yield f"ip netns add {rank}"
        ends = f"port{rank} mtu {PACKET_BYTES}", f"{INTERFACE} mtu {PACKET_BYTES} netns {rank}"
        yield f"ip link add {ends[0]} type veth peer name {ends[1]}"
        yield f"ip link set port{rank} master switch up"
        yield f"ip -n {rank} link set lo up; ip -n {rank} link set {INTERFACE} up"
        for setting, value in TCP.items():
            file = f"/proc/sys/net/ipv4/tcp_{setting}"
            yield f"ip netns exec {rank} sh -c 'echo {value} > {file}'"
        address = f"{NETWORK[1 + rank]}/{NETWORK.prefixlen}"
        yield f"ip -n {rank} address add {address} dev {INTERFACE}"
        if link is not None:
            yield f"tc qdisc add dev port{rank} root {token_bucket(link)}"
            yield f"tc -n {rank} qdisc add dev {INTERFACE} root {token_bucket(link)}"
            # Linux hands 64 KiB of one connection to a network card, which cuts them into packets.
            # A card of 10 Gbit/s has sent them after 0.05 ms, this link after many, while others
            # wait: they would not share it fairly.  One packet at a time they do.
            yield f"ip -n {rank} link set {INTERFACE} gso_max_segs 1"
    yield "echo ready; exec cat"


def _start(
    command: Sequence[str], rank: int, workers: int, inside: Sequence[str]
) -> subprocess.Popen[str]:
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),  # they share this machine's cores
        "MASTER_ADDR": str(NETWORK[1]),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        # NCCL would see that the GPUs are in one machine, and go around the network.
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",  # what a worker has printed is not lost when it is killed
    }
    # A process that enters another mount namespace stands at its root.
    there = ["ip", "netns", "exec", str(rank), "env", f"--chdir={Path.cwd()}"]
    return subprocess.Popen(
        [*inside, *there, *command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        errors="replace",
    )


def _copy(source: IO[str], to: TextIO, rank: int) -> int:
    with source:
        for line in source:
            text = line.removesuffix("\n")
            to.write(f"[{rank}] {text}\n")
            to.flush()
    return 0


def bytes_per_second(rate: str) -> float:
    """Return the bytes/s of a rate in bits/s, written as ``tc`` writes it: "1gbit", "2.5mbit"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", rate.strip().lower())
    if not found or not float(found[1]):
        raise ValueError(
            f"a link's rate is bits per second above zero, written as tc writes them: "
            f"'500mbit', '1gbit' or '2.5gbit', not {rate!r}"
        )
    return float(found[1]) * _BITS[found[2]] / 8


def burst_bytes(rate: str) -> float:
    """Return how many bytes a link of that rate, when idle, lets through at once."""
    return max(BURST_S * bytes_per_second(rate), LEAST_BURST_BYTES)


def token_bucket(rate: str) -> str:
    """Return the queueing discipline that holds a link to that rate, as arguments of ``tc``."""
    allowed = bytes_per_second(rate)
    queue = max(QUEUE_S * allowed, LEAST_QUEUE_BYTES)
    return f"tbf rate {8 * allowed:.0f}bit burst {burst_bytes(rate):.0f} limit {queue:.0f}"
