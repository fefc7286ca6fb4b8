"""The process in which the simulated accelerator lives, and runs one test after the other.

An accelerator cannot be taken out of a process again, autograd must meet it before its first
backward, and other tests shall not see one.
"""

import faulthandler
import importlib
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.device import sanitizer
from tests.device.simulated import device_module, host_order

LONGEST_S = 100

_sim: ModuleType | None = None


def simulated() -> Any:
    """Return the built module; to be called by what runs in the accelerator's process."""
    assert _sim is not None, "there is a simulated accelerator in its own process only"
    return _sim


class DeviceProcess:
    """A process with the simulated accelerator, started when first used, and again if it dies.

    Args:
        library: the built module; None: it is to have those accelerators only that are here.
    """

    def __init__(self, library: Path | None) -> None:
        self._library = library
        self._pool: ProcessPoolExecutor | None = None

    def run(self, module: str, function: str, arguments: dict[str, Any]) -> None:
        """Call a function there; raise what it raises, or AssertionError if it races or hangs."""
        with tempfile.NamedTemporaryFile("r", suffix=".stacks") as stacks:
            try:
                call = self._started().submit(_call, module, function, arguments, stacks.name)
                skipped = call.result()
            except BrokenProcessPool:
                self.close()
                said = stacks.read() or "(it said nothing)"
                raise AssertionError(
                    f"the accelerator's process died or hung for {LONGEST_S} s:\n{said}"
                ) from None
        if skipped is not None:
            pytest.skip(skipped)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, get_context("spawn"), initializer=_begin, initargs=(self._library,)
            )
        return self._pool


def _begin(library: Path | None) -> None:
    global _sim
    torch.set_num_threads(1)
    if library is None:
        torch.use_deterministic_algorithms(True)
        if sanitizer.ON:
            sanitizer.watch_threads()
        return
    _sim = device_module.load(library)
    host_order.install(simulated())


def _call(module: str, function: str, arguments: dict[str, Any], stacks: str) -> str | None:
    """Run a test; return why it skips itself, if it does."""
    with Path(stacks).open("w") as file:
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=file)
        try:
            test = getattr(importlib.import_module(module), function)
            if _sim:
                simulated().settle()
            test(**arguments)
            races = simulated().take_races() if _sim else []
            assert not races, "races:\n" + "\n".join(races)
        except pytest.skip.Exception as skip:
            return str(skip)
        except pytest.fail.Exception as failure:  # which cannot be pickled
            raise AssertionError(str(failure)) from failure
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.disable()
    return None
