"""Kernels of notebooks that are executed here."""

import tempfile
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from traitlets import default

SOCKET_PATH_BYTES = 103  # of a Unix socket: the least that any system allows


class ThisInterpreter(KernelManager):
    """Starts a kernel in this very Python, and speaks to it through Unix sockets.

    A kernel called "python3" may be another environment's, from the user's Jupyter settings.  TCP
    ports are chosen before the kernel opens them, and another one that starts at the same time may
    take one in between.
    """

    @default("connection_file")
    def _connection_file_default(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="pipekit-kernel-")
        return str(Path(self._folder.name, "kernel.json"))

    @default("transport")
    def _transport_default(self) -> str:
        longest = self.connection_file.removesuffix(".json") + "-ipc-99"
        return "ipc" if len(longest.encode()) <= SOCKET_PATH_BYTES else "tcp"

    @default("transport_encryption")
    def _transport_encryption_default(self) -> str:
        return "auto"  # newer kernels warn on the terminal when they are spoken to in the clear

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())
