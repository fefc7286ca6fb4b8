"""Runs a function in several processes that torchrun might have started: links over gloo."""

import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch.distributed as dist

from pipekit.engine.transports.processes.forkserver import forkserver, without_main_module
from pipekit.engine.transports.processes.pickling import portable

LIMIT_S = 300


def over_gloo(function: Callable[[], Any], workers: int) -> list[Any]:
    """Return what ``function`` returned in each process, or raise what it raised in the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends, processes = [], []
    context = forkserver()
    for rank in range(workers):
        ours, theirs = context.Pipe(duplex=False)
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        process = context.Process(
            target=_main, args=(theirs, environment, cloudpickle.dumps(function)), daemon=True
        )
        with without_main_module():
            process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    try:
        results = []
        for end in ends:
            assert end.poll(LIMIT_S), "no answer"
            good, value = cloudpickle.loads(end.recv_bytes())
            if not good:
                raise value
            results.append(value)
        return results
    finally:
        for process in processes:
            process.kill()
            process.join()


def _main(end: Connection, environment: dict[str, str], function: bytes) -> None:
    os.environ.update(environment)
    try:
        result = True, cloudpickle.loads(function)()
        if dist.is_initialized():
            dist.barrier()  # none may leave while another still needs it
    except BaseException as error:
        result = False, portable(error)
    end.send_bytes(cloudpickle.dumps(result))
