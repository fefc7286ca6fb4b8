import warnings

import numpy as np
import pytest

from pipekit import units


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (16e9, "16 GB"),
        (1e9, "1 GB"),
        (999.9e6, "999.9 MB"),
        (2e4, "20 kB"),
        (12, "0.012 kB"),
        (0, "0 kB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_has_one(number: float, text: str) -> None:
    assert units.written(number, units.BYTES) == text


def test_a_number_of_any_kind_is_an_amount_or_a_whole_one() -> None:
    with warnings.catch_warnings(action="error"):
        units.require_amount("seconds", np.float32(2))  # type: ignore[arg-type]
    assert units.whole("workers", np.int64(2)) == 2


@pytest.mark.parametrize(
    ("number", "text"), [(16 * 2**30, "16 GiB"), (16e9, "16 GB"), (0.5 * 2**30, "536.9 MB")]
)
def test_a_devices_memory_is_written_as_its_name_has_it(number: float, text: str) -> None:
    assert units.memory_text(number) == text
