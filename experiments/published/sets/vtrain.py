"""vTrain's measurements of GPT on A100 (Bang et al., vTrain, MICRO 2024): one node, and many."""

from dataclasses import dataclass, replace
from functools import cache, partial

from experiments.published.published_set import PublishedSet, RowPrediction
from experiments.published.rows import given
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.frameworks import MEGATRON_DEEPSPEED
from pipekit.performance.layout import ParallelLayout, Recompute, on_gpus
from pipekit.performance.predict import step
from pipekit.performance.shapes import Shape, gpt
from pipekit.performance.terms.collectives import Curve, Links
from pipekit.performance.training import TrainingSetup
from pipekit.reading import read_table

_A100 = machine("A100 80GB")
MACHINE = "Megatron-DeepSpeed on A100"
EFFICIENCIES = tuple(round(0.80 + 0.02 * each, 2) for each in range(10))
OVERHEADS = tuple(round(each * 1e-6, 7) for each in range(38, 58, 3))


@dataclass(frozen=True)
class VTrainRow:
    """A configuration."""

    row_id: str
    gpus: int
    global_batch_samples: int
    micro_batch_samples: int
    hidden_size: int
    attention_heads: int
    layers: int
    seq_tokens: int
    tp: int
    dp: int
    pp: int

    @property
    def model(self) -> str:
        """A name of its shape."""
        return f"GPT {self.hidden_size} x {self.layers}"


def _predicted(row: VTrainRow, constants: Constants, *, recompute: Recompute) -> RowPrediction:
    layout = on_gpus(
        row.gpus,
        row.global_batch_samples,
        tp=row.tp,
        pp=row.pp,
        microbatch_samples=row.micro_batch_samples,
        recompute=recompute,
    )
    model = gpt("GPT", row.hidden_size, row.attention_heads, row.layers)
    network = 100e9  # bytes/s of a node: 800 Gb/s, as the set's own configuration files say
    return predicted(on_nodes(model, layout, network, constants, row.seq_tokens))


def on_nodes(
    model: Shape,
    layout: ParallelLayout,
    node_bandwidth: float,
    constants: Constants,
    seq_tokens: int,
) -> TrainingSetup:
    """Return a training on nodes of 8 A100 with so many bytes/s of network each."""
    links = Links(replace(_A100, network_bandwidth=node_bandwidth / 8), all_reduces())
    return TrainingSetup(model, layout, links, MEGATRON_DEEPSPEED, constants, "float16", seq_tokens)


def predicted(run: TrainingSetup) -> RowPrediction:
    """Return the prediction of such a training."""
    given = ", measured all-reduces" if run.links.all_reduces else ""
    return RowPrediction(step(run).seconds, "data sheet, fitted constants" + given)


@cache
def all_reduces() -> dict[int, Curve]:
    """Return the all-reduces of a node that the set gives in full; empty without its folder."""
    path = given("vtrain/all_reduce_a100_one_node.csv")
    if path is None:
        return {}
    groups = read_table(path).groupby("gpus")
    return {
        int(gpus): (rows["size_bytes"].to_numpy(), rows["all_reduce_us"].to_numpy() * 1e-6)
        for gpus, rows in groups
    }


def _flops(row: VTrainRow) -> float:
    """Return a step's FLOPs a GPU (Narayanan et al., SC '21, equation 2)."""
    shape = gpt("GPT", row.hidden_size, row.attention_heads, row.layers)
    scores = 12 * row.layers * row.hidden_size * row.seq_tokens
    tokens = row.global_batch_samples * row.seq_tokens
    return tokens * (6 * shape.active_parameters + scores) / row.gpus


_vtrain = partial(
    PublishedSet,
    row=VTrainRow,
    machine=lambda _: MACHINE,
    work=_flops,
    efficiencies=EFFICIENCIES,
    overheads=OVERHEADS,
)

SINGLE_NODE = _vtrain(
    name="vtrain_single_node",
    file="vtrain/single_node.csv",
    predict=partial(_predicted, recompute="nothing"),
    kind=lambda row: f"tp {row.tp}",
    published_error=0.0837,
)
MULTI_NODE = _vtrain(
    name="vtrain_multi_node",
    file="vtrain/multi_node.csv",
    predict=partial(_predicted, recompute="everything"),
    published_error=0.1473,
)
