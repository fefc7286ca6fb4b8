"""The largest GPT for a depth."""

import pytest

from experiments.pipedream_2bw.memory import largest_model
from experiments.pipedream_2bw.memory.largest_model import largest, with_blocks
from pipekit.models import gpt
from pipekit.models.gpt import LAYOUTS


def test_a_network_of_so_many_blocks_is_what_the_model_is() -> None:
    _, hidden, heads = LAYOUTS["3.8B"]
    parameters = sum(p.numel() for p in gpt(2, hidden, heads, device="meta").parameters())
    assert with_blocks(2).parameter_bytes == 2 * parameters


def test_one_gpu_holds_18_bytes_a_parameter_or_22_and_little_else() -> None:
    found, fewer = largest(1), largest(1, more_bytes=4)
    block = with_blocks(2).layers[1].parameter_bytes / 2
    assert 18 * found < 16 * 2**30 < 18 * (found + 2 * block)
    assert 22 * fewer < 16 * 2**30 < 22 * (fewer + 2 * block)


def test_deeper_pipelines_hold_more() -> None:
    assert largest(1) < largest(2) < largest(4)


def test_nothing_fits_a_device_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_model, "CAPACITY", 1.0)
    assert largest(2) == 0
