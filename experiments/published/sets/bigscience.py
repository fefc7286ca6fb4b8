"""BigScience's trials before BLOOM: A100 nodes of Jean Zay, Megatron-DeepSpeed, 18 to 200 billion
parameters (chronicles-prequel.md).  Rank only: the authors saw the network vary by 40 %."""

from dataclasses import dataclass, replace

from experiments.published.published_set import PublishedSet, RowPrediction
from experiments.published.sets.vtrain import MACHINE, on_nodes, predicted
from pipekit.performance.constants import Constants
from pipekit.performance.layout import ParallelLayout
from pipekit.performance.memory import peak_bytes
from pipekit.performance.shapes import Shape, gpt

_NETWORK = 50e9
"""Bytes/s of a node: four Omni-Path links of 100 Gb/s."""
_VOCABULARY = 250_880
_HEAD_WIDTH = 128
_HIDDEN = 14_400
"""Of rows that do not print it, with layers tweaked to fit (the set's README)."""
_ONE_NODE_BATCH = 512
"""Samples of a step of the one-node lines: they print 2048 and TFLOPs of a quarter of them."""

_FLOAT32_FROM = "02-28"
"""From this date on gradients are summed in float32, beside those of 2 bytes."""


@dataclass(frozen=True)
class BigScienceRow:
    """A line of a table."""

    row_id: str
    date: str
    nodes: int
    gpus: int
    model_billions: float
    layers: float | None
    hidden_size: float | None
    attention_heads: float | None
    zero_stage: float | None
    seq_tokens: int
    dp: int
    tp: int
    pp: int
    micro_batch_samples: int
    global_batch_samples: int


def _shape(row: BigScienceRow) -> Shape:
    hidden = int(row.hidden_size or _HIDDEN)
    layers = int(row.layers or 0)
    if not layers:
        weights = row.model_billions * 1e9 - _VOCABULARY * hidden
        layers = round(weights / (12 * hidden**2) / row.pp) * row.pp
    heads = int(row.attention_heads or hidden // _HEAD_WIDTH)
    return gpt("BLOOM trial", hidden, heads, layers, _VOCABULARY)


def _predicted(row: BigScienceRow, constants: Constants) -> RowPrediction:
    batch = _ONE_NODE_BATCH if row.nodes == 1 else row.global_batch_samples
    layout = ParallelLayout(
        tp=row.tp,
        pp=row.pp,
        dp=row.dp,
        microbatch_samples=row.micro_batch_samples,
        microbatches=max(round(batch / (row.micro_batch_samples * row.dp)), 1),
        zero=int(1 if row.zero_stage is None else row.zero_stage),
        recompute="everything",
    )
    run = on_nodes(_shape(row), layout, _NETWORK, constants, row.seq_tokens)
    if row.date >= _FLOAT32_FROM:
        own = replace(run.framework, accumulation_bytes=8, gradients_held=8)
        run = replace(run, framework=own)
    return replace(predicted(run), memory_bytes=max(peak_bytes(run)))


def _flops(row: BigScienceRow) -> float:
    tokens = row.global_batch_samples * row.seq_tokens
    return 6 * _shape(row).active_parameters * tokens / row.gpus


BIGSCIENCE = PublishedSet(
    name="bigscience",
    file="bigscience/a100_steps.csv",
    row=BigScienceRow,
    machine=lambda _: MACHINE,
    predict=_predicted,
    work=_flops,
)
