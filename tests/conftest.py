"""What all tests share: settings that make them repeatable, and nothing of the user's touched."""

import atexit
import gc
import os
import signal
import sys
from pathlib import Path

# Before torch starts its threads, and for all processes that tests start: on a machine with other
# work, or with more workers than cores, threads that spin at a barrier take most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Sums on several threads may add up in another order: a worker's share of many cores, too, is one.
os.environ["OMP_NUM_THREADS"] = "1"

import matplotlib
import pytest
import torch
from hypothesis import settings

from pipekit.devices import stay_on_cpu

# With it jsonschema, which nbformat imports, would compile grammars of URLs for some seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
gc.disable()  # until all tests are collected: most of what is made till then stays

# A shell's background job ignores interrupts, and so would tests that send themselves one.
signal.signal(signal.SIGINT, signal.default_int_handler)

stay_on_cpu()

torch.set_num_threads(1)
matplotlib.use("Agg")

# A shared machine may stall any single example; pytest-timeout guards the whole test.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
settings.register_profile("properties", settings.get_profile("quick"), max_examples=200)


APART = {"browser", "devices", "long", "models", "scripts", "whole"}
"""Marks of tests that take long and run only where they are asked for: each has a make target."""


def pytest_configure(config: pytest.Config) -> None:
    """Try properties on more random cases where they are asked for (make properties)."""
    settings.load_profile("properties" if "hypothesis" in config.getoption("-m") else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with a mark of :data:`APART` unless ``-m`` names it."""
    left_out = {mark for mark in APART if mark not in config.getoption("-m")}
    long = [item for item in items if left_out & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in set(long)]


def pytest_collection_finish() -> None:
    """Keep what stays to the end, thousands of tests and torch, out of each garbage collection."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries complain of what is never collected


@pytest.fixture(autouse=True)
def _own_jupyter_folders(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep signatures, history and kernels of the user's Jupyter out of the tests."""
    for variable in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path_factory.getbasetemp() / "jupyter" / variable))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that the tests lie in."""
    return Path(__file__).parents[1]
