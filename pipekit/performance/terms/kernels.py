"""Seconds of one kernel: a roofline (Williams et al., CACM 2009) with the waves of its tiles."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from pipekit.performance.devices import Machine

_TILES = ((128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.75), (64, 64, 0.55))
"""Rows and columns of a tile, and the share of the peak that it reaches (CUTLASS, "Efficient GEMM";
NVIDIA, Matrix Multiplication Background User's Guide, section 3)."""
_FILL = 512  # depth of a product that takes as long as to fill and drain a tile's pipeline
_UNALIGNED = 2.5
"""How many times as long a product of 2-byte numbers takes whose rows do not begin at multiples of
16 bytes (the same guide, section 2.1)."""
_TRAFFIC, _TRAFFIC_BY_EFFICIENCY = 0.85, 1.214
"""The most of its sheet's bandwidth that a memory gives (BabelStream on A100 and H100), and how
that falls where products, too, fall far behind the sheet: power and clocks limit both."""
BYTES = {"float4": 0.5, "float8": 1.0, "bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
_CAST_BYTES = {"float8": 4.0, "float4": 10.0}
"""To quantize an element of 2 bytes: read, find the scale, write twice, once of them transposed."""


class PassCosts(NamedTuple):
    """Seconds on the device of a forward and a backward, and the kernels that a host launches.

    ``exchange_s`` of messages between experts come to either.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_launches: float = 0.0
    backward_launches: float = 0.0
    exchange_s: float = 0.0

    def scaled(self, factor: float) -> "PassCosts":
        return PassCosts(*(factor * each for each in self))


def total(*parts: PassCosts) -> PassCosts:
    """Return passes that run one after the other."""
    return PassCosts(*map(sum, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Kernels:
    """What kernels of a dtype take on a machine that reaches so much of its sheet.

    If weights are ``trained``, ``accumulation_bytes`` of each are moved to add its gradient.
    """

    machine: Machine
    dtype: str
    efficiency: float
    accumulation_bytes: float = 0.0
    trained: bool = True

    def product(
        self, m: float, k: float, n: float, batch: float = 1, dtype: str = "", row: float = 0
    ) -> float:
        """Return seconds of ``batch`` products of [m, k] and [k, n]: the slowest of two limits.

        In memory the first's rows have k numbers, or ``row`` where it is stored transposed.
        """
        dtype = dtype or self.dtype
        flops = 2.0 * batch * m * k * n * self._waste(m, n, batch) * (1 + _FILL / k)
        if any(size % 8 for size in (row or k, n) if size == int(size)):
            flops *= _UNALIGNED
        size = BYTES[dtype]
        moved = batch * (size * (m * k + k * n) + max(size, 2.0) * m * n)
        return max(flops / (self.efficiency * self.machine.peak(dtype)), self.traffic(moved))

    def traffic(self, moved: float) -> float:
        """Return seconds to read and write so many bytes of the device's memory."""
        share = min(_TRAFFIC, _TRAFFIC_BY_EFFICIENCY * self.efficiency)
        return moved / (share * self.machine.device.memory_bandwidth)

    def both(self, forward_bytes: float, backward_bytes: float) -> PassCosts:
        """Return passes that only move so many bytes."""
        return PassCosts(self.traffic(forward_bytes), self.traffic(backward_bytes))

    def linear(self, m: float, k: float, n: float, batch: float = 1, dtype: str = "") -> PassCosts:
        """Return passes of ``batch`` layers [k, n] on m rows each: output, and both gradients."""
        cast = _CAST_BYTES.get(dtype or self.dtype, 0.0) * batch
        forward = self.product(m, k, n, batch, dtype) + self.traffic(cast * m * k)
        backward = self.product(m, n, k, batch, dtype) + self.traffic(cast * m * n)
        if self.trained:
            backward += self.product(k, m, n, batch, dtype, row=k)
            backward += self.traffic(self.accumulation_bytes * batch * k * n)
        return PassCosts(forward, backward)

    def _waste(self, m: float, n: float, batch: float) -> float:
        """Return how many times the work whole waves of whole tiles are, with the best tile."""
        wave = self.machine.multiprocessors
        return min(
            math.ceil(batch * math.ceil(m / rows) * math.ceil(n / columns) / wave)
            * (wave * rows * columns / (share * batch * m * n))
            for rows, columns, share in _TILES
        )
