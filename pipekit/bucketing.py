"""Gradients that are reduced together.

Many small messages cost more than a large one, and one message for all could not leave before the
backward is done.  As in PyTorch's DistributedDataParallel, gradients are taken in the reverse of
their order, which is about that of the backward.
"""

from collections.abc import Sequence

BUCKET_BYTES = 25_000_000


def buckets(sizes: Sequence[float], kinds: Sequence[object] | None = None) -> list[list[int]]:
    """Return which gradients go together, the last ones first.

    Args:
        sizes: bytes of each gradient; those of 0 are in no bucket.
        kinds: of each gradient; only those of one kind go together.

    Returns:
        Indices, each bucket of at most BUCKET_BYTES or of one gradient.
    """
    groups: list[list[int]] = []
    filled = 0.0
    for index in reversed(range(len(sizes))):
        if not sizes[index]:
            continue
        alike = bool(groups) and (kinds is None or kinds[index] == kinds[groups[-1][0]])
        if not alike or filled + sizes[index] > BUCKET_BYTES:
            groups.append([])
            filled = 0.0
        groups[-1].append(index)
        filled += sizes[index]
    return groups
