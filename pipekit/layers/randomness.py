"""Random numbers as a pure function of (seed, layer, microbatch).

A dropout mask must not depend on which worker drew it, in what order, or for which time (a
recomputed forward draws again).  So each layer's forward behaves as if the default generator had
just been seeded with :func:`layer_seed`: any partition, any schedule, either transport and the
oracle then see the same numbers.
"""

import zlib


def layer_seed(seed: int, layer: int, microbatch: int) -> int:
    """Return the 32-bit seed of one layer's forward pass."""
    return zlib.crc32(f"{seed}/{layer}/{microbatch}".encode())
