"""A link's rate as Linux's traffic control writes it, and the filter that holds a link to it."""

import re

# A late timer costs no bandwidth as long as the bucket does not overflow in the meantime.
BURST_S, LEAST_BURST_BYTES = 1e-3, 2**14
# What may wait for the link: enough that no small message is dropped behind several large ones.
QUEUE_S, LEAST_QUEUE_BYTES = 50e-3, 2**20

_BITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def bytes_per_second(rate: str) -> float:
    """Return the bytes/s of a rate in bits/s, written as ``tc`` writes it: "1gbit", "2.5mbit".

    Of packets of 9,000 bytes 99 % are left for what a program sends by TCP (of Ethernet's 1,500
    95 %); the rest is headers.

    Raises:
        ValueError: it is not written so, or it is zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)bit", rate.strip().lower())
    if not found or not float(found[1]):
        raise ValueError(
            f"a link's rate is bits per second above zero, written as tc writes them: "
            f"'500mbit', '1gbit' or '2.5gbit', not {rate!r}"
        )
    return float(found[1]) * _BITS[found[2]] / 8


def burst_bytes(rate: str) -> float:
    """Return how many bytes a link of that rate, when idle, lets through at once."""
    return max(BURST_S * bytes_per_second(rate), LEAST_BURST_BYTES)


def token_bucket(rate: str) -> str:
    """Return the queueing discipline that holds a link to that rate, as arguments of ``tc``."""
    allowed = bytes_per_second(rate)
    queue = max(QUEUE_S * allowed, LEAST_QUEUE_BYTES)
    return f"tbf rate {8 * allowed:.0f}bit burst {burst_bytes(rate):.0f} limit {queue:.0f}"
