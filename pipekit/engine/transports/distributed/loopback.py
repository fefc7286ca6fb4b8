"""Where torch.distributed listens when all workers are on this machine: where nobody else can."""

import os
import socket


def stay_on_loopback() -> None:
    """Make gloo and NCCL listen on the loopback interface, unless told otherwise."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)
