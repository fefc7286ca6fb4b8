"""``pipekit profile``, as a user types it."""

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import unstyle

from pipekit import Profile
from tests.cli.conftest import Printed


def test_it_prints_what_was_measured_and_writes_it(printed: Printed, elsewhere: Path) -> None:
    text = printed("profile mlp --rows 2 --repeats 1 --output new/p.json")
    assert "mlp, 2 rows, float32" in text
    assert re.search(r"│ 1 Linear +│ +\d+\.\d{3} │ +\d+\.\d{3} │ +0\.00 │ +0\.40 │ +0\.00 │", text)
    assert re.search(r"│ all ", text)
    assert re.search(r"measured on \d+ threads? of .*, 1 repeat:\s+layers / whole\s+\d", text)
    assert text.splitlines()[-1] == "wrote new/p.json"
    made = Profile.load("new/p.json")
    assert made.rows == 2
    assert len(made) == 16


@pytest.mark.parametrize(("option", "shown"), [("", True), ("--quiet", False)])
def test_a_bar_unless_it_is_quiet(pipekit: Callable[[str], Any], option: str, shown: bool) -> None:
    result = pipekit(f"profile mlp --rows 2 --repeats 1 {option}")
    assert ("profiling: " in result.stderr) == shown


def test_it_estimates_for_a_named_device(printed: Printed) -> None:
    text = printed("profile alexnet --rows 1 --analytic 'V100 16GB' --dtype float16")
    assert "alexnet, 1 row, float16" in text
    assert "simulated for V100 16GB at 50% of its peak and 75% of its memory bandwidth" in text
    assert re.search(r"│ all +│ .* │ +122\.20 │", text)  # 2 bytes of each parameter


def test_a_warning_is_one_line_beside_the_table(
    pipekit: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(*_: Any, **__: Any) -> Profile:
        warnings.warn("busy", stacklevel=2)
        how = {"label": "simulated", "device": "x", "dtype": "float32"}
        rates = {"efficiency": 1, "memory_efficiency": 1}
        return replace(Profile.uniform(2), provenance=how | rates)

    monkeypatch.setattr("pipekit.profiling.measured.profile", warned)
    result = pipekit("profile mlp")
    assert unstyle(result.stderr) == "warning: busy\n"
    assert result.exit_code == 0


def test_skips_stand_below_the_table(printed: Printed) -> None:
    """The first is of 64 channels of 192 x 192 numbers."""
    text = printed("profile unet-5-64 --rows 1 --analytic 'V100 16GB'")
    assert "skip 'level 0/skip': layer 5 to 59, 9.437 MB" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("vgg", "model must be one of convnet, mlp, gpt, alexnet, .*, not 'vgg'"),
        ("mlp --device tpu", "'tpu' is not a device: say 'cpu', or 'cuda:0'"),
        ("mlp --dtype int8", "dtype must be one of float32, float16, bfloat16, not 'int8'"),
        ("mlp --analytic V100", "analytic must be one of K80 12GB, .*, not 'V100'"),
        ("mlp --analytic 'TPU-v2 core 8GB'", "dtype on TPU-v2 core 8GB must be one of bfloat16"),
    ],
)
def test_wrong_input_gets_one_sentence(line: str, says: str, refused: Printed) -> None:
    assert re.match(f"error: {says}", refused(f"profile {line}"))
