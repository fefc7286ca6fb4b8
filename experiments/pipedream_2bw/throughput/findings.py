"""What Figure 6's panels say of the paper's ratios, each miss with its cause (5.2)."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from experiments.pipedream_2bw.settings import FIGURE6, PRINTED_PARAMETERS
from experiments.pipedream_2bw.systems import FLUSH, GPIPE, INTER_LAYER, TENSOR_MP, TWO_BW
from experiments.pipedream_2bw.throughput import rates
from experiments.pipedream_2bw.throughput.panels import LARGE, SMALL, Figure6
from experiments.recorded.findings import Finding
from pipekit import models, plots, schedules
from pipekit.clusters import Cluster
from pipekit.models.gpt import LAYOUTS
from pipekit.traces import Trace
from pipekit.units import bytes_text

WAYS = [2, 4, 8, 16, 32]
"""Of tensor model parallelism on 64 GPUs."""


def model_finding() -> Finding:
    """Return the parameters of our GPTs."""
    counted = []
    for size in PRINTED_PARAMETERS:
        gpt = models.PUBLISHED[f"gpt-{size}"].build(device="meta")
        # Megatron counts the head's weights, which are the embedding's, once.
        head = gpt[-1].get_parameter("weight").numel()
        counted.append(sum(p.numel() for p in gpt.parameters()) - head)
    return Finding.exact("2bw-setup-models", counted, f"layouts {LAYOUTS}")


def hardware_finding(cluster: Cluster, server: Cluster) -> Finding:
    """Return whether our 64 and 8 GPUs are as section 5 prints them."""
    nvlink, network = cluster.levels
    as_printed = (
        (network.width, nvlink.width, cluster.workers) == (8, 8, 64)
        and (nvlink.name, cluster.device.name) == ("NVLink", "V100 16GB")
        and cluster.device.memory_bytes == 16 * 2**30
        and server.workers == 8
    )
    return Finding.simulated("2bw-setup-hardware", as_printed, str(cluster))


LOGITS = "the logits make the last stage the slowest"
"""What makes several ratios miss: stages of equally many blocks are not equally slow.  The other
way is that the logits take no time."""


EARLY = "stages recompute when the backward begins"
"""The same of the rest: the other way is to recompute while they wait for the gradient."""


def why_tensor(found: Figure6) -> str:
    """Return why the ratio to tensor model parallelism misses: which NVLink would meet it."""
    job = found.jobs["a"][FIGURE6["a"].batches[SMALL]]
    used = job.cluster.levels[0].used_bandwidth
    tensor_s, ours_s = (
        job.batch / found.simulated["a"].loc[job.batch, system] for system in (TENSOR_MP, TWO_BW)
    )
    free_s = rates.tensor_mp_seconds(rates.on_links(job, "NVLink", float("inf")))
    attained = (tensor_s - free_s) / (1.3 * ours_s - free_s) * used
    return (
        f"NVLink at {bytes_text(used)}/s, and the last stage's logits slow the pipeline: "
        f"without their time {max(found.balanced(TWO_BW, TENSOR_MP)):.2f} (simulated); or 1.3 if "
        f"an all-reduce attained no more than {100 * attained / used:.0f} % of that. That "
        f"matrices of a {job.depth}th of the columns run slower is not in the model either"
    )


def tensor_findings(found: Figure6) -> list[Finding]:
    """Return 2BW beside tensor model parallelism."""
    why, simulated = why_tensor(found), found.simulated
    network = (
        "16 ways span two servers; 25 Gbps between servers (AWS), which the paper does not print"
    )
    one_server, two = (max(found.over(TWO_BW, TENSOR_MP, letter)) for letter in "ac")
    spread = [float((simulated[p][TWO_BW] / simulated[p][TENSOR_MP]).max()) for p in "ac"]
    even = max(found.balanced(TWO_BW, TENSOR_MP))
    return [
        Finding.simulated("2bw-abstract-20x", two, network, "figure6c.svg"),
        Finding.simulated("2bw-sec52-tensor-mp-20x", two, network),
        Finding.of("2bw-sec52-tensor-mp-1-3x", one_server, found.label, why).because(LOGITS, even),
        Finding.simulated("2bw-intro-speedup-range", spread, why).because(
            LOGITS, [even, spread[-1]]
        ),
    ]


def inter_layer_findings(found: Figure6) -> list[Finding]:
    """Return 2BW and Flush beside inter-layer model parallelism, and what unequal stages do."""
    job = found.jobs["a"][FIGURE6["a"].batches[SMALL]]
    inter, flush, ours = (
        rates.recomputed_early(job, system) for system in (INTER_LAYER, FLUSH, TWO_BW)
    )
    why = (
        "stages are unequal by the logits, as with equal numbers of blocks in the paper; without "
        "their time {:.2f}. Also simulated: recomputed when the backward begins (4.1); if stages "
        "recomputed while they wait for their gradient, as GPipe's, 2BW would be "
        f"{inter / ours:.2f} times as fast as inter-layer MP and Flush {inter / flush:.2f}"
    ).format
    ratio, even = found.over(FLUSH, INTER_LAYER, "a"), found.balanced(FLUSH, INTER_LAYER)
    best = max(found.over(TWO_BW, INTER_LAYER, "a"))
    best_why = why(max(found.balanced(TWO_BW, INTER_LAYER)))
    return [
        Finding.of("2bw-sec52-flush-4-1x", ratio[SMALL], found.label, why(even[SMALL]))
        .because(LOGITS, even[SMALL])
        .because(EARLY, inter / flush),
        Finding.of("2bw-sec52-flush-5-3x", ratio[LARGE], found.label, why(even[LARGE])).because(
            LOGITS, even[LARGE]
        ),
        Finding.of("2bw-sec52-2bw-6-1x", best, found.label, best_why, "ratios.svg").because(
            LOGITS, max(found.balanced(TWO_BW, INTER_LAYER))
        ),
    ]


def gpipe_and_flush_findings(found: Figure6) -> list[Finding]:
    """Return 2BW and Flush beside GPipe, and 2BW beside Flush."""
    admitted = ", ".join(str(job.admitted()) for own in found.jobs.values() for job in own.values())
    why = (
        f"GPipe admits as many microbatches as fit with their logits and log-probabilities kept "
        f"({admitted}); by the formula of section 3.1, inputs alone, all would fit and GPipe be as "
        "fast as Flush"
    )
    both = SMALL, LARGE
    flush = [found.most(FLUSH, GPIPE, which) for which in both]
    ours = max(found.most(TWO_BW, GPIPE, which) for which in both)
    gains = [found.most(TWO_BW, FLUSH, which, "b") for which in both]
    equal = found.jobs["b"][FIGURE6["b"].batches[SMALL]]
    small = [gains[SMALL], (equal.microbatches + equal.depth - 1) / equal.microbatches]
    others = " and ".join(f"{found.most(TWO_BW, FLUSH, which, 'c'):.2f}" for which in both)
    note, percent = f"2.2B, 64 GPUs; 3.8B: {others} for the two batches", 100 * (gains[LARGE] - 1)
    return [
        Finding.simulated("2bw-intro-gpipe-3-2x", ours, why, "ratios.svg"),
        Finding.simulated("2bw-sec52-gpipe-2-1x", flush[SMALL], why),
        Finding.simulated("2bw-sec52-gpipe-3x", flush, why),
        Finding.simulated("2bw-sec52-2bw-over-flush-1-6", small, note).because(
            "the network of which the ratio is",
            [found.most(TWO_BW, FLUSH, SMALL, "c"), small[1]],
            changed="3.8B in place of 2.2B",
        ),
        Finding.simulated("2bw-sec52-2bw-over-flush-15pct", percent, note),
    ]


def panel_findings(found: Figure6) -> list[Finding]:
    """Return the least ratio of each pair that a panel shows in order."""
    flush, gpipe, tensor = (TWO_BW, FLUSH), (FLUSH, GPIPE), (TWO_BW, TENSOR_MP)
    note = f"tensor MP simulated. {why_tensor(found)}"
    pairs = {
        "a": (found.label, note, [flush, gpipe, (FLUSH, INTER_LAYER), tensor]),
        "b": ("simulated", "", [flush, gpipe]),
        "c": ("simulated", "", [flush, gpipe, tensor]),
    }
    least = {p: [min(found.over(*pair, p)) for pair in own] for p, (_, _, own) in pairs.items()}
    figures = [
        Finding.of(f"2bw-fig6{p}", least[p], label, why, f"figure6{p}.svg")
        for p, (label, why, _) in pairs.items()
    ]
    even = [min(found.balanced(*pair)) for pair in pairs["a"][2]]
    return [figures[0].because(LOGITS, even), *figures[1:]]


def shrinking_gain_finding() -> Finding:
    """Return whether 2BW's gain over Flush shrinks with the batch, in equal time slots."""
    gains, forms = {}, {}
    for depth in (8, 16):
        for count in (depth, 2 * depth, 4 * depth):
            slots = Trace.from_schedule(schedules.flush(depth, count).take(1)).makespan_s
            gains[depth, count] = slots / (3 * count)  # 2BW: a forward and a backward in 3 slots
            forms[depth, count] = (count + depth - 1) / count
    shrinking = all(gains[d, d] > gains[d, 2 * d] > gains[d, 4 * d] for d in (8, 16))
    told = "; ".join(f"d = {d}, m = {m}: {gain:.3f}" for (d, m), gain in gains.items())
    return Finding.exact("2bw-sec52-gain-shrinks-with-batch", shrinking and gains == forms, told)


def tensor_rates() -> pd.DataFrame:
    """Return sequences a second of tensor model parallelism on 64 GPUs: ways, model, throughput."""
    return pd.DataFrame(
        {"ways": n, "model": size, "throughput": rates.tensor_mp_rate(size, n, 2048, 8)}
        for size in LAYOUTS
        if size != "355M"
        for n in WAYS
    )


def beyond_a_server(table: pd.DataFrame) -> float:
    """Return how much of the throughput is left on 16 ways, of that on 8, at most."""
    drop = table.pivot(index="ways", columns="model", values="throughput")
    return float((drop.loc[16] / drop.loc[8]).max())


def tensor_figure(table: pd.DataFrame) -> go.Figure:
    """Draw :func:`tensor_rates`."""
    left = beyond_a_server(table)
    title = f"Beyond the 8 GPUs of a server, {left:.2f} of the throughput or less is left"
    ways = "ways of tensor model parallelism, 64 GPUs in all, batch 2048"
    drawn = table.rename(columns={"ways": ways, "throughput": "sequences/s"})
    figure = plots.curves(drawn, ways, "sequences/s", "model", title=title, label="simulated")
    return figure.update_xaxes(type="log", tickvals=WAYS, ticktext=WAYS)


def tensor_finding(table: pd.DataFrame) -> Finding:
    """Return :func:`beyond_a_server` of :func:`tensor_rates`."""
    return Finding.simulated("2bw-tensor-mp-limit", beyond_a_server(table), figure="tensor_mp.svg")


FEW_WORDS = "BERT has fewer words, so that the logits of more of GPipe's microbatches fit"
"""What lets GPipe need fewer flushes with BERT than with the GPT."""


def bert_finding(letters: str, slower: Sequence[str], with_gpts_logits: Sequence[str]) -> Finding:
    """Return whether the systems stand in the same order with BERT.

    They do not where one is ``slower`` than another; or would be, ``with_gpts_logits``.
    """
    note = f"panels {letters}: 2BW > Flush > GPipe > inter-layer MP, 2BW > tensor MP"
    if slower:
        note += f", but not {'; '.join(sorted(slower))}"
    instead = "as many bytes of logits as the GPT has"
    return Finding.simulated("2bw-bert-similar", not slower, note).because(
        FEW_WORDS, not with_gpts_logits, changed=instead
    )
