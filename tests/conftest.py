"""What all tests share: settings that make them repeatable, and nothing of the user's touched."""

import os
from pathlib import Path

# Before torch starts its threads, and for all processes that tests start: on a machine with other
# work, or with more workers than cores, threads that spin at a barrier take most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import matplotlib
import pytest
import torch
from hypothesis import settings

# Sums on several threads may add up in another order on a machine with more cores.
torch.set_num_threads(1)
matplotlib.use("Agg")

# A shared machine may stall any single example; pytest-timeout guards the whole test.
settings.register_profile("pipekit", deadline=None, derandomize=True)
settings.load_profile("pipekit")


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
