"""What autograd makes of passes that are issued in any order (torchgpipe, section 3.2.2)."""

import random
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from pipekit.engine.module import Place, link


def out_of_order(m: int, n: int, issues: int, in_order: bool, seed: int = 0) -> int:
    """Return in how many random issues autograd reaches some device's backwards out of order.

    A pass is issued after those that the graph makes it wait for, which has the edges of Fork and
    Join only if ``in_order``.
    """
    rng = random.Random(seed)
    wrong = 0
    for _ in range(issues):
        order: list[Place] = []
        noted: Any = SimpleNamespace(
            begin=lambda _: None, reached=order.append, differentiate=lambda: [None]
        )
        passes = list(_random_issue(m, n, in_order, rng))
        (y,) = link(noted, [torch.ones(1, requires_grad=True)], [torch.ones(1)], passes, in_order)
        y.backward()
        orders = [[k for stage, k in order if stage == s] for s in range(n)]
        wrong += any(each != list(range(m))[::-1] for each in orders)
    return wrong


def _random_issue(m: int, n: int, in_order: bool, rng: random.Random) -> Iterator[Place]:
    """Yield each stage and microbatch after those that it needs."""
    left = set(product(range(n), range(m)))
    while left:
        ready = [
            (stage, k)
            for stage, k in sorted(left)
            if (stage - 1, k) not in left and (not in_order or (stage, k - 1) not in left)
        ]
        place = rng.choice(ready)
        left.remove(place)
        yield place
