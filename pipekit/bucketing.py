"""Gradients that are reduced together, as in PyTorch's DistributedDataParallel."""

from collections.abc import Sequence

BUCKET_BYTES = 25_000_000


def buckets(sizes: Sequence[float], kinds: Sequence[object] | None = None) -> list[list[int]]:
    """Return the indices of gradients that go together, the last first, as backwards make them.

    A bucket has at most BUCKET_BYTES or one gradient, and gradients of one kind; those of 0 bytes
    are in no bucket.
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
