"""What torchgpipe's sections 2 and 3 claim of functions, graphs, orders and portals, found in runs.

Order is not timed but found: in autograd's graph, in the engine's messages, and in what each device
did.
"""

from collections.abc import Iterable
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from experiments.recorded.findings import Finding
from experiments.torchgpipe.graph import device_order, edges, equality, portals
from experiments.torchgpipe.graph.compositions import differing_compositions
from experiments.torchgpipe.graph.edges import Edges, PaperTask
from experiments.torchgpipe.graph.random_issues import out_of_order
from pipekit import PipelinedModule
from pipekit.layers import skips


def function_findings(network: nn.Sequential, x: Tensor, largest: int) -> list[Finding]:
    """Return whether a pipelined module is the function that it wraps (section 2).

    ``x`` is a minibatch for the network; m and n go up to ``largest``.
    """
    swept, sizes = f"m and n from 1 to {largest}", list(product(range(1, largest + 1), repeat=2))
    composed = differing_compositions(network, x, [1, 2, 3]) == 0
    tasks = all(equality.outputs_are_those_of_microbatches(network, x, *mn) for mn in sizes)
    off = max(equality.pipelined_gradient_difference(network, x, *mn) for mn in sizes)
    batch_norm = list(equality.batch_norm_differences(4, 32))
    recomputed = equality.recomputation_difference(4, 12)
    learns = equality.trains(equality.mlp, [3, 5], 3, 30)
    splits = "all splits into 1 to 3 partitions, to the bit"
    bits = f"{swept}; to the bit of f(x_i), and of f(x) but for float32 rounding"
    norm = f"{swept}; norm of the difference over the norm, float32"
    tokens = (
        "outputs and gradients with and without the edges; the elements are those of all tokens"
    )
    joined = list(equality.fork_and_join(4, 3))
    return [
        Finding.exact("torchgpipe-eq-partitions-compose", composed, splits),
        Finding.exact("torchgpipe-eq-microbatch-tasks", tasks, bits),
        Finding.exact("torchgpipe-eq-gradient-sum", off, norm),
        Finding.exact("torchgpipe-bn-exception", batch_norm),
        Finding.exact("torchgpipe-referential-transparency", recomputed, "dropout"),
        Finding.exact("torchgpipe-wrapper-usage", learns),
        Finding.exact("torchgpipe-fork-join-identity", joined, tokens),
    ]


def figure_findings(found1: Edges, found2: Edges, picture1: str, picture2: str) -> list[Finding]:
    """Return whether edges found in runs are those of Figures 1, 2 and 4, for m = 4 and n = 3.

    They are what :func:`edges.found1` and :func:`edges.found2` returned.
    """
    backwards, orders, _ = edges.run(*edges.pipelined(4, 3))
    virtual = {
        (PaperTask("B", i + 1, j), PaperTask("B", i, j)) for i in range(1, 4) for j in range(1, 4)
    }
    follows = {pair for tasks in orders for pair in pairwise(tasks)}
    recomputed = {(a, PaperTask("F'", b.i, b.j)) for a, b in virtual}
    first, second = found1 == edges.figure1(4, 3), found2 == edges.figure2(4, 3)
    fourth = virtual <= backwards and recomputed <= follows
    read_off = "B's order is read off autograd's graph, F' off the trace"
    half = "F' is the first half of its pass: the pass's node has the edge, the trace has F' first"
    return [
        Finding.exact("torchgpipe-fig1-dependency", first, "", picture1),
        Finding.exact("torchgpipe-fig2-dependency-ckpt", second, read_off, picture2),
        Finding.exact("torchgpipe-fig4-graph", fourth, half, picture2),
    ]


def order_findings(found2: Edges, largest: int, issues: int, seed: int) -> list[Finding]:
    """Return what section 2.1 and Algorithm 1 claim of the order of tasks.

    ``found2`` is what :func:`edges.found2` returned for m = 4 and n = 3; m and n go up to
    ``largest``; autograd's order is tried on so many random ``issues``.
    """
    swept = f"m and n from 1 to {largest}"
    sizes = product(range(1, largest + 1), repeat=2)
    runs = {(m, n): edges.run(*edges.pipelined(m, n)) for m, n in sizes}
    cycles = {mn: edges.cycles(issued) for mn, (_, _, issued) in runs.items()}
    ordered = all(edges.follows_the_order(orders, m) for (m, _), (_, orders, _) in runs.items())
    counts = all(len(found) == m + n - 1 for (m, n), found in cycles.items())
    tasks = all(found == edges.clock_cycles(m, n) for (m, n), found in cycles.items())
    dependent = sum(
        a.kind == b.kind == "F" and a.i + a.j == b.i + b.j for a, b in edges.closed(found2)
    )
    free, bound = (out_of_order(4, 3, issues, has, seed) for has in (False, True))
    sent = f"{swept}; a device's copies are sent as soon as its task is over, before its next cycle"
    tried = f"in {issues} random issues, m = 4 and n = 3; also in the trace for {swept}"
    some = f"{free} of {issues} issues"
    traced = f"{swept}, in the trace of every device"
    return [
        Finding.exact("torchgpipe-order-constraints", ordered, traced),
        Finding.exact("torchgpipe-alg1-clock-count", counts, swept),
        Finding.exact("torchgpipe-alg1-tasks-per-clock", tasks, sent),
        Finding.exact("torchgpipe-alg1-independent-tasks", dependent),
        Finding.measured("torchgpipe-autograd-order-uncontrolled", free > 0, some),
        Finding.exact("torchgpipe-fork-join-order", bound == 0, tried),
    ]


def device_findings(
    ours: list[device_order.Journal], stock: list[device_order.Journal]
) -> list[Finding]:
    """Return what Figure 3 claims of one device, and section 3.1 of PyTorch's own checkpoint.

    Both are what 3 devices did with 4 microbatches: on the engine, and with PyTorch's checkpoint.
    """
    as_drawn = all(
        journal.names == device_order.expected(device, 3, 4)
        for device, journal in enumerate(ours, 1)
    )
    early, late = (
        [hit for j in each[:-1] for hit in device_order.recomputes_before_the_gradient(j)]
        for each in (ours, stock)
    )
    binds = bool(early) and all(early) and bool(late) and not any(late)
    pair = (
        "F', receive, B on every device; each forward is recomputed once. One pass of the engine, "
        "not two autograd functions, holds what they would share"
    )
    waits = "order of F' and the gradient's arrival on all devices but the last; the last one waits"
    one = "the engine has one copy stream a worker: its copies keep the microbatches' order"
    return [
        Finding.exact("torchgpipe-fig3-device-order", as_drawn, "3 devices, 4 microbatches"),
        Finding.exact("torchgpipe-checkpoint-recompute-pair", as_drawn and all(early), pair),
        Finding.emulated("torchgpipe-native-checkpoint-binds", binds, waits),
        Finding.exact("torchgpipe-stream-per-microbatch", False, one),
    ]


def portal_findings(unet: portals.CountedUNet, picture: str) -> list[Finding]:
    """Return what section 3.3 claims of portals and of a network in sequential form."""
    partitions, width = 5, 16
    model, x = portals.parallel(partitions, width), torch.randn(8, width)
    parallel = portals.counted(model, x, [1] * partitions, 4)
    tensors = [parallel[j - 2, j - 1] // (8 * width * 4) for j in range(2, partitions + 1)]
    between = skips.between(skips.links(unet.model), unet.balance)
    ends = [(skip.source, skip.destination) for skip in between]
    extra = edges.closed(edges.messages(4, 4, ends)) - edges.closed(edges.messages(4, 4))
    with torch.no_grad():
        straight, inlined = (
            each.eval()(unet.image) for each in (unet.model, skips.inlined(unet.model))
        )
    api = _unpaired_is_refused(unet.model[:6]) and torch.equal(straight, inlined)
    counted = "bytes counted over every link, both ways, are those of 1 copy and of j - j' copies"
    forward = "j - 1 tensors from device j - 1 to j, forward, in bytes"
    pairs = "pairs of tasks that wait for one another with U-Net's skips and not without"
    calls = (
        "layers call self.stash and self.pop instead of yielding; inputs and outputs stay tensors"
    )
    grows = tensors == list(range(1, partitions))
    return [
        Finding.exact("torchgpipe-fig6-portals", unet.is_the_closed_form, counted, picture),
        Finding.exact("torchgpipe-nonseq-tuple-copies", grows, forward),
        Finding.exact("torchgpipe-portals-no-extra-deps", len(extra), pairs),
        Finding.exact("torchgpipe-skip-api", api, calls),
    ]


def _unpaired_is_refused(beginning: Iterable[nn.Module]) -> bool:
    """Return whether a network's beginning, which stashes what nobody pops, is refused."""
    layers = nn.Sequential(*beginning)
    try:
        PipelinedModule(layers, [len(layers) // 2, len(layers) - len(layers) // 2], chunks=2)
    except ValueError as refusal:
        return "which no layer pops" in str(refusal)
    return False
