"""parcae: DeepSpeed on V100s of AWS, one an instance, with 10 Gb/s between them (NSDI '24)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import PositiveInt

from experiments.published.published_set import Row, RowPrediction, Size, given
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.step import TrainingStep
from pipekit.reading import read_table

_V100 = machine("V100 16GB")
_LINE = 1448 / 1538 * _V100.network_bandwidth
"""Bytes/s of a message: of an Ethernet frame, headers and gaps counted, that TCP carries."""
_NARROW = 512  # hidden size at which products reach half of the efficiency of large ones
_LOGIT_BYTES = 10  # moved for each logit: float16 twice, float32 for the loss and its gradient
_UPDATE_BYTES = 26  # by Adam for each weight: 4-byte state, weight and copy, the gradient
_BLOCKS_UNSTATED = 32  # of gpt-6.7b, in its training script
_IMAGES = {"resnet152": (11.5e9, 60.2e6, 14 * 14 * 1024), "vgg19": (19.6e9, 143.7e6, 56 * 56 * 256)}
"""Forward FLOPs and parameters at 224 x 224 pixels, and the activations of the middle layer (He et
al., CVPR 2016, Table 1; Simonyan and Zisserman, ICLR 2015, Table 1)."""


@dataclass(frozen=True)
class ParcaeRow(Row):
    """Degrees, microbatches and the model's shape (0 where a cell is empty: image models)."""

    name = "parcae"
    file = "parcae/step_times.csv"
    degrees = "dp", "pp"
    efficiencies = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.55, 0.58, 0.6, 0.62, 0.65, 0.7)
    overheads = (5e-3, 5.5e-3, 5.8e-3, 6e-3, 6.2e-3, 6.5e-3, 7e-3)

    model: str
    dp: PositiveInt
    pp: PositiveInt
    micro_batch_samples: PositiveInt
    microbatches_per_replica: PositiveInt
    layers: PositiveInt | None
    hidden_size: Size
    attention_heads: Size
    seq_tokens: Size
    vocabulary: Size

    @property
    def gpus(self) -> int:
        return self.dp * self.pp

    @property
    def blocks(self) -> int:
        return self.layers or _BLOCKS_UNSTATED

    @property
    def tokens(self) -> int:
        """Of a microbatch."""
        return self.micro_batch_samples * self.seq_tokens

    @property
    def machine(self) -> str:
        return f"DeepSpeed{', convolutions' * (self.model in _IMAGES)} on V100 16GB"

    @property
    def kind(self) -> str:
        return "images" if self.model in _IMAGES else "transformers"

    @property
    def part(self) -> str:
        return f" ({self.model})" if self.model in _IMAGES else ""

    @property
    def work(self) -> float:
        samples = self.micro_batch_samples * self.microbatches_per_replica / self.pp
        if self.model in _IMAGES:
            return samples * _IMAGES[self.model][0]
        return samples * 24 * self.blocks * self.hidden_size**2 * self.seq_tokens

    @property
    def anomaly(self) -> str | None:
        if self.model == "bert" and self.gpus == 18:
            return "twice as slow as all neighbours"
        if (self.model, self.dp, self.pp) == ("gpt-6.7b", 2, 16):
            return "1.4 times as slow as its neighbours"
        return None

    def predict(self, constants: Constants) -> RowPrediction:
        """Return the seconds of each stage's passes together, and of the largest stage's update.

        In it gradients of 2 bytes are summed around a ring (Patarasuk and Yuan, JPDC 2009), and
        Adam goes on.
        """
        passes = _images if self.model in _IMAGES else _language
        stages_s, sent, weights = passes(self, constants)
        latency_s, exchanged_per_s, basis = _network(given("parcae/p2p_10gbps.csv"))
        transfer = latency_s + sent / _LINE
        exchange = 2 * (self.dp - 1) / self.dp * 2 * weights / exchanged_per_s
        last = max(stage for stage, seconds in enumerate(stages_s) if seconds)
        step = TrainingStep(
            forward_s=tuple(each / 3 for each in stages_s),
            backward_s=tuple(each * 2 / 3 for each in stages_s),
            microbatches=self.microbatches_per_replica,
            # Workers behind the last layer always wait, so that one of the two transfers is hidden.
            transfer_s=tuple(transfer * (1 if s < last else 0.5) for s in range(self.pp - 1)),
            blocking=True,
            after_s=exchange + _UPDATE_BYTES * weights / _V100.device.memory_bandwidth,
        )
        return RowPrediction(step.seconds, basis)


Passes = tuple[Sequence[float], float, float]
"""Of a microbatch: seconds of each stage's forward and backward, bytes sent between stages; and the
weights of the largest stage."""


@cache
def _network(path: Path | None) -> tuple[float, float, str]:
    """Return the smallest message's seconds, bytes/s of a long exchange, and what they rest on."""
    if path is None:
        return 0.0, _LINE, "data sheets"
    messages = read_table(path)
    size, seconds = messages["message_bytes"], messages["p2p_us"] * 1e-6
    return seconds[0], size.iloc[-1] / seconds.iloc[-1], "data sheets, messages timed"


def filled(items: int, stages: int) -> list[int]:
    """Return how many of equal items each stage gets: the most that one needs, till none is left.

    DeepSpeed deals so (``runtime/utils.py``, ``partition_balanced``), by the type of a layer.
    """
    most = math.ceil(items / stages)
    return [min(most, max(0, items - stage * most)) for stage in range(stages)]


def _images(row: ParcaeRow, constants: Constants) -> Passes:
    """Return the passes of an image model in equal stages."""
    flops, weights, sent = _IMAGES[row.model]
    stage = _products_s(3 * row.micro_batch_samples * flops / row.pp, constants.efficiency)
    return [stage] * row.pp, 2.0 * row.micro_batch_samples * sent, weights / row.pp


def _language(row: ParcaeRow, constants: Constants) -> Passes:
    """Return the passes of GPT or BERT.

    Items are the blocks, and for GPT the head; BERT's head is part of its last block.  A block's
    seconds are products, and activations kept three times (Korthikanti et al., arXiv 2205.05198,
    section 4.1).
    """
    if not (row.hidden_size and row.attention_heads and row.seq_tokens and row.vocabulary):
        raise ValueError(
            f"{row.model} needs hidden_size, attention_heads, seq_tokens and vocabulary; "
            f"image models are {', '.join(_IMAGES)}"
        )
    hidden, tokens, memory = row.hidden_size, row.tokens, _V100.device.memory_bandwidth
    head_items = int(row.model != "bert")
    items = filled(row.blocks + head_items, row.pp)
    last = max(stage for stage, count in enumerate(items) if count)
    items[last] -= head_items
    flops = 12 * hidden * tokens * (6 * hidden + row.seq_tokens)
    moved = 3 * tokens * (34 * hidden + 5 * row.attention_heads * row.seq_tokens)
    products = _products_s(flops, constants.efficiency * hidden / (hidden + _NARROW))
    again = 4 / 3 if row.model == "gpt-6.7b" else 1  # it alone recomputes
    block = max(again * (products + moved / memory), constants.overhead_s)
    logits, width = tokens * row.vocabulary, math.sqrt(row.vocabulary * hidden)
    efficiency = constants.efficiency * width / (width + 2 * _NARROW)
    head = _products_s(6 * logits * hidden, efficiency) + _LOGIT_BYTES * logits / memory
    seconds = [count * block + head * (stage == last) for stage, count in enumerate(items)]
    weights = max(
        count * 12 * hidden**2 + row.vocabulary * hidden * (stage in (0, last))
        for stage, count in enumerate(items)
    )
    return seconds, 2.0 * tokens * hidden, weights


def _products_s(flops: float, efficiency: float) -> float:
    return flops / (_V100.peak("float16") * efficiency)
