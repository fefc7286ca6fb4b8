"""Rates, as tc writes them."""

import pytest

from pipekit.clusters.namespaces import bytes_per_second


@pytest.mark.parametrize(
    ("rate", "expected"),
    [("8bit", 1), ("64kbit", 8e3), ("500mbit", 62.5e6), ("2.5Gbit", 312.5e6), ("1tbit", 125e9)],
)
def test_rates_are_read_as_bytes_per_second(rate: str, expected: float) -> None:
    assert bytes_per_second(rate) == expected


@pytest.mark.parametrize("rate", ["", "1", "gbit", "1gb", "1gbps", "1 gbit", "-1gbit", "0mbit"])
def test_another_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match=f"'500mbit', '1gbit' or '2.5gbit', not '{rate}'"):
        bytes_per_second(rate)
