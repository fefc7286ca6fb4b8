"""Functions that run side by side, or one alone."""

import threading
from typing import Any

import pytest
import torch

from pipekit.engine.together import together


def modes(tell: Any) -> tuple[bool, ...]:
    tell(threading.current_thread().name)
    cpu, cuda = (torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cpu, cuda


@pytest.mark.parametrize("count", [1, 2])
def test_modes_are_those_of_a_new_thread(count: int) -> None:
    heard: list[str] = []
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert (
            together([modes] * count, lambda: None, heard.append)
            == [(True, False, False, False)] * count
        )
    assert len(heard) == count


def test_a_single_function_runs_here() -> None:
    heard: list[str] = []
    together([modes], lambda: None, heard.append)
    assert heard == [threading.current_thread().name]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_stops_all_and_is_the_callers(error: type[BaseException], count: int) -> None:
    stopped = threading.Event()
    cores = torch.get_num_threads()

    def fails(_: Any) -> None:
        raise error("mine")

    def waits(_: Any) -> None:
        assert stopped.wait(10)

    with pytest.raises(error, match="mine"):
        together([fails, waits][:count], stopped.set)
    assert stopped.is_set()
    assert torch.get_num_threads() == cores
