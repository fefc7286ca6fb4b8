"""What torchgpipe's sections 2 and 3 claim of functions, graphs, orders and portals, found in runs.

Order is not timed but found: in autograd's graph, in the engine's messages, and in what each device
did.
"""

from collections.abc import Iterable
from itertools import pairwise, product

import pandas as pd
import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from pipekit import PipelinedModule, skips
from pipekit.papers.drawing import named_rows
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.semantics import differing_compositions
from pipekit.papers.torchgpipe import device_order, equality, graph, portals
from pipekit.papers.torchgpipe.graph import Edges, PaperTask


def sizes(largest: int) -> list[tuple[int, int]]:
    """Return every (m, n) up to a largest number."""
    return list(product(range(1, largest + 1), range(1, largest + 1)))


def function_findings(network: nn.Sequential, x: Tensor, largest: int) -> list[Finding]:
    """Return whether a pipelined module is the function that it wraps (section 2).

    Args:
        network: say :func:`equality.mlp`.
        x: a minibatch for it.
        largest: most microbatches and devices.
    """
    swept, all_sizes = f"m and n from 1 to {largest}", sizes(largest)
    return [
        Finding.exact(
            "torchgpipe-eq-partitions-compose",
            differing_compositions(network, x, [1, 2, 3]) == 0,
            "all splits into 1 to 3 partitions, to the bit",
        ),
        Finding.exact(
            "torchgpipe-eq-microbatch-tasks",
            all(equality.outputs_are_those_of_microbatches(network, x, *mn) for mn in all_sizes),
            f"{swept}; to the bit of f(x_i), and of f(x) but for float32 rounding",
        ),
        Finding.exact(
            "torchgpipe-eq-gradient-sum",
            max(equality.pipelined_gradient_difference(network, x, *mn) for mn in all_sizes),
            f"{swept}; norm of the difference over the norm, float32",
        ),
        Finding.exact("torchgpipe-bn-exception", list(equality.batch_norm_differences(4, 32))),
        Finding.exact(
            "torchgpipe-referential-transparency",
            equality.recomputation_difference(4, 12),
            "dropout",
        ),
        Finding.exact("torchgpipe-wrapper-usage", equality.trains(equality.mlp, [3, 5], 3, 30)),
        Finding.exact(
            "torchgpipe-fork-join-identity",
            list(equality.fork_and_join(4, 3)),
            "outputs and gradients with and without the edges; the elements are those of all "
            "tokens",
        ),
    ]


def figure_findings(found1: Edges, found2: Edges, picture1: str, picture2: str) -> list[Finding]:
    """Return whether edges found in runs are those of Figures 1, 2 and 4, for m = 4 and n = 3.

    Args:
        found1: what :func:`graph.found1` returned.
        found2: what :func:`graph.found2` returned.
    """
    edges, orders, _ = graph.run(*graph.pipelined(4, 3))
    virtual = {
        (PaperTask("B", i + 1, j), PaperTask("B", i, j)) for i in range(1, 4) for j in range(1, 4)
    }
    follows = {pair for tasks in orders for pair in pairwise(tasks)}
    recomputed = {(a, PaperTask("F'", b.i, b.j)) for a, b in virtual}
    return [
        Finding.exact("torchgpipe-fig1-dependency", found1 == graph.figure1(4, 3), "", picture1),
        Finding.exact(
            "torchgpipe-fig2-dependency-ckpt",
            found2 == graph.figure2(4, 3),
            "B's order is read off autograd's graph, F' off the trace",
            picture2,
        ),
        Finding.exact(
            "torchgpipe-fig4-graph",
            virtual <= edges and recomputed <= follows,
            "F' is the first half of its pass: the pass's node has the edge, the trace has F' "
            "first",
            picture2,
        ),
    ]


def order_findings(found2: Edges, largest: int, issues: int, seed: int) -> list[Finding]:
    """Return what section 2.1 and Algorithm 1 claim of the order of tasks.

    Args:
        found2: what :func:`graph.found2` returned for m = 4 and n = 3.
        largest: most microbatches and devices.
        issues: random orders of issue that autograd's order is tried on.
        seed: of these.
    """
    swept = f"m and n from 1 to {largest}"
    runs = {(m, n): graph.run(*graph.pipelined(m, n)) for m, n in sizes(largest)}
    cycles = {mn: graph.cycles(issued) for mn, (_, _, issued) in runs.items()}
    before = graph.closed(found2)
    free, bound = (
        graph.out_of_order(4, 3, issues, in_order=in_order, seed=seed) for in_order in (False, True)
    )
    return [
        Finding.exact(
            "torchgpipe-order-constraints",
            all(graph.follows_the_order(orders, m) for (m, _), (_, orders, _) in runs.items()),
            f"{swept}, in the trace of every device",
        ),
        Finding.exact(
            "torchgpipe-alg1-clock-count",
            all(len(found) == m + n - 1 for (m, n), found in cycles.items()),
            swept,
        ),
        Finding.exact(
            "torchgpipe-alg1-tasks-per-clock",
            all(found == graph.clock_cycles(m, n) for (m, n), found in cycles.items()),
            f"{swept}; a device's copies are sent as soon as its task is over, before its next "
            "cycle",
        ),
        Finding.exact(
            "torchgpipe-alg1-independent-tasks",
            sum(a.kind == b.kind == "F" and a.i + a.j == b.i + b.j for a, b in before),
        ),
        Finding.measured(
            "torchgpipe-autograd-order-uncontrolled", free > 0, f"{free} of {issues} issues"
        ),
        Finding.exact(
            "torchgpipe-fork-join-order",
            bound == 0,
            f"in {issues} random issues, m = 4 and n = 3; also in the trace for {swept}",
        ),
    ]


def device_findings(
    ours: list[device_order.Journal], stock: list[device_order.Journal]
) -> list[Finding]:
    """Return what Figure 3 claims of one device, and section 3.1 of PyTorch's own checkpoint.

    Args:
        ours: what 3 devices did with 4 microbatches on the engine.
        stock: likewise, with PyTorch's own checkpoint.
    """
    as_drawn = all(
        journal.names == device_order.expected(device, 3, 4)
        for device, journal in enumerate(ours, 1)
    )
    early, late = (
        [hit for j in each[:-1] for hit in device_order.recomputes_before_the_gradient(j)]
        for each in (ours, stock)
    )
    return [
        Finding.exact("torchgpipe-fig3-device-order", as_drawn, "3 devices, 4 microbatches"),
        Finding.exact(
            "torchgpipe-checkpoint-recompute-pair",
            as_drawn and all(early),
            "F', receive, B on every device; each forward is recomputed once. One pass of the "
            "engine, not two autograd functions, holds what they would share",
        ),
        Finding.emulated(
            "torchgpipe-native-checkpoint-binds",
            bool(early) and all(early) and bool(late) and not any(late),
            "order of F' and the gradient's arrival on all devices but the last; the last one "
            "waits",
        ),
        Finding.exact(
            "torchgpipe-stream-per-microbatch",
            False,
            "the engine has one copy stream a worker: its copies keep the microbatches' order",
        ),
    ]


class CountedUNet:
    """A small U-Net on four devices, every byte between them counted, with portals and without.

    Args:
        pixels: height and width of its images.
    """

    balance = (5, 6, 6, 5)

    def __init__(self, model: nn.Sequential, pixels: int) -> None:
        self.model, self.image = model, torch.randn(4, 3, pixels, pixels)
        self.counted = {
            True: portals.counted(model, self.image, self.balance, 2),
            False: portals.counted(skips.inlined(model), self.image, self.balance, 2),
        }

    @property
    def is_the_closed_form(self) -> bool:
        """Whether the bytes over every link are those of 1 copy, and of j - j' copies."""
        return all(
            found == portals.closed_form(self.model, self.image, self.balance, which)
            for which, found in self.counted.items()
        )

    @property
    def saved(self) -> float:
        """The part of all bytes that portals save."""
        return 1 - self.counted[True].total() / self.counted[False].total()

    @property
    def frame(self) -> pd.DataFrame:
        """The kB over each forward link."""
        links = sorted({link for each in self.counted.values() for link in each})
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
        title = f"Portals save {self.saved:.0%} of U-Net's bytes"
        kb = "kB forward, a minibatch"
        return named_rows(self.frame.set_index("link"), kb, title=title, label="exact")[0]


def portal_findings(unet: CountedUNet, picture: str) -> list[Finding]:
    """Return what section 3.3 claims of portals and of a network in sequential form.

    Args:
        unet: whose bytes were counted.
    """
    partitions, width = 5, 16
    parallel = portals.counted(
        portals.parallel(partitions, width), torch.randn(8, width), [1] * partitions, 4
    )
    tensors = [parallel[j - 2, j - 1] // (8 * width * 4) for j in range(2, partitions + 1)]
    between = skips.between(skips.links(unet.model), unet.balance)
    ends = [(skip.source, skip.destination) for skip in between]
    extra = graph.closed(graph.messages(4, 4, ends)) - graph.closed(graph.messages(4, 4))
    return [
        Finding.exact(
            "torchgpipe-fig6-portals",
            unet.is_the_closed_form,
            "bytes counted over every link, both ways, are those of 1 copy and of j - j' copies",
            picture,
        ),
        Finding.exact(
            "torchgpipe-nonseq-tuple-copies",
            tensors == list(range(1, partitions)),
            "j - 1 tensors from device j - 1 to j, forward, in bytes",
        ),
        Finding.exact(
            "torchgpipe-portals-no-extra-deps",
            len(extra),
            "pairs of tasks that wait for one another with U-Net's skips and not without",
        ),
        Finding.exact(
            "torchgpipe-skip-api",
            _unpaired_is_refused(unet.model[:6]) and _inlined_is_equal(unet),
            "layers call self.stash and self.pop instead of yielding; inputs and outputs stay "
            "tensors",
        ),
    ]


def _unpaired_is_refused(beginning: Iterable[nn.Module]) -> bool:
    """Return whether a network's beginning, which stashes what nobody pops, is refused."""
    layers = nn.Sequential(*beginning)
    try:
        PipelinedModule(layers, [len(layers) // 2, len(layers) - len(layers) // 2], chunks=2)
    except ValueError as refusal:
        return "which no layer pops" in str(refusal)
    return False


def _inlined_is_equal(unet: CountedUNet) -> bool:
    """Return whether skips that ride along give the same output, to the bit."""
    with torch.no_grad():
        straight = unet.model.eval()(unet.image)
        return torch.equal(straight, skips.inlined(unet.model).eval()(unet.image))
