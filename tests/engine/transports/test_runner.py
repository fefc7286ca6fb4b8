"""What runs workers over a transport."""

import sys

import pytest

from pipekit.names import TRANSPORTS


def test_what_an_optimizer_loads_is_there_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's compiler: whichever method trained first would take 1.5 s longer for it."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # so that loading it fails
    with pytest.raises(ModuleNotFoundError, match=r"torch\._dynamo"):
        TRANSPORTS.load("threads")([])
