"""Bytes between devices, with portals and without (torchgpipe, section 3.3)."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from experiments.recorded.drawing import named_rows
from pipekit.engine import Pipeline
from pipekit.layers import skips
from pipekit.schedules import gpipe
from pipekit.trees import Tree

Link = tuple[int, int]
"""From a device to another, counted from 0."""


def counted(model: nn.Sequential, x: Tensor, balance: Sequence[int], chunks: int) -> Counter[Link]:
    """Train on a minibatch and return the bytes over each link; backward links go down.

    The model gives a tensor of rows; ``balance`` has the layers of each device.
    """
    pipeline = Pipeline(
        model,
        gpipe(len(balance), chunks),
        balance=list(balance),
        optimizer=partial(torch.optim.SGD, lr=0.0),
        loss=lambda output, target: output.square().mean(),
        devices=["cpu"] * len(balance),
    )
    traffic = pipeline.train([(x, torch.zeros(len(x)))], trace=False).traffic
    return Counter(traffic.groupby(["source", "destination"])["bytes"].sum().to_dict())


def closed_form(
    model: nn.Sequential, x: Tensor, balance: Sequence[int], portals: bool
) -> Counter[Link]:
    """Return the bytes over each link by the sizes of the tensors alone.

    The main tensor crosses every boundary.  A skip from device j' to device j goes once from j' to
    j by a portal, and else over all the boundaries between, j - j' of them (Figure 6).  Gradients
    go back the same ways.
    """
    main, stashed = _sizes(model, x)
    found: Counter[Link] = Counter()
    for boundary, behind in enumerate(list(accumulate(balance))[:-1]):
        found[boundary, boundary + 1] += main[behind - 1]
    for name, source, destination in skips.between(skips.links(model), balance):
        stops = [source, destination] if portals else list(range(source, destination + 1))
        for stop, after in pairwise(stops):
            found[stop, after] += stashed[name]
    return found + Counter({(b, a): size for (a, b), size in found.items()})


def copies(model: nn.Sequential, balance: Sequence[int]) -> pd.DataFrame:
    """Return for each skip between devices how often a microbatch's tensor is copied, each way."""
    return pd.DataFrame(
        {"skip": name, "from": a + 1, "to": b + 1, "with portal": 1, "without": b - a}
        for name, a, b in skips.between(skips.links(model), balance)
    )


class CountedUNet:
    """A small U-Net on four devices, every byte between them counted, with portals and without.

    Its images are ``pixels`` high and wide.
    """

    balance = (5, 6, 6, 5)

    def __init__(self, model: nn.Sequential, pixels: int) -> None:
        self.model, self.image = model, torch.randn(4, 3, pixels, pixels)
        ways = {True: model, False: skips.inlined(model)}
        self.counted = {has: counted(way, self.image, self.balance, 2) for has, way in ways.items()}

    @property
    def is_the_closed_form(self) -> bool:
        """Whether the bytes over every link are those of 1 copy, and of j - j' copies."""
        expect: Callable[[bool], Counter[Link]] = partial(
            closed_form, self.model, self.image, self.balance
        )
        return all(found == expect(which) for which, found in self.counted.items())

    @property
    def frame(self) -> pd.DataFrame:
        """The kB over each forward link."""
        links = sorted(set(self.counted[True]) | set(self.counted[False]))
        return pd.DataFrame(
            {
                "link": f"{a + 1} to {b + 1}",
                "portals": self.counted[True][a, b] / 1000,
                "no portals": self.counted[False][a, b] / 1000,
            }
            for a, b in links
            if a < b
        )

    def figure(self) -> go.Figure:
        """Draw :attr:`frame`, a row a link."""
        saved = 1 - self.counted[True].total() / self.counted[False].total()
        title = f"Portals save {saved:.0%} of U-Net's bytes"
        kb = "kB forward, a minibatch"
        return named_rows(self.frame.set_index("link"), kb, title=title, label="exact")[0]


def _sizes(model: nn.Sequential, x: Tensor) -> tuple[list[int], dict[str, int]]:
    """Return the bytes of each layer's output, and of each skip."""
    main, stashed, under_way = list[int](), dict[str, int](), dict[str, Tensor]()
    y: Tree = x
    with torch.no_grad():
        for layer in model:
            y, under_way = skips.call(layer, y, under_way)
            assert isinstance(y, Tensor)
            main.append(y.nbytes)
            stashed |= {name: tensor.nbytes for name, tensor in under_way.items()}
    return main, stashed


class Branch(nn.Module):
    """Partition j of a parallel network in sequential form: (x1, ..., f_j(x1)) (section 3.3).

    The first partition makes the tuple of one tensor, the last one gives the sum of all others.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f = nn.Linear(width, width)

    def forward(self, passed: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if isinstance(passed, Tensor):
            return (self.f(passed),)
        return (*passed, self.f(passed[0]))


class Last(nn.Module):
    """Partition n: of all tensors but the first."""

    def forward(self, passed: tuple[Tensor, ...]) -> Tensor:
        return torch.stack(passed[1:]).sum(0)


def parallel(partitions: int, width: int) -> nn.Sequential:
    """Return the symptomatic model of section 3.3: all partitions but the ends are parallel."""
    return nn.Sequential(*(Branch(width) for _ in range(partitions - 1)), Last())
