"""Megatron-Core's trainings: NVIDIA's throughput tables, and MLPerf's submissions."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import PositiveInt

from experiments.published.published_set import PublishedSet, RowMeasured, RowPrediction, Values
from pipekit.performance.constants import Constants
from pipekit.performance.devices import MACHINES, machine
from pipekit.performance.layout import ParallelLayout, on_gpus
from pipekit.performance.predict import step
from pipekit.performance.shapes import SHAPES, Shape, shape
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import MEGATRON_BRIDGE, MEGATRON_CORE, TrainingSetup

EFFICIENCIES = tuple(round(0.42 + 0.03 * each, 2) for each in range(13))
OVERHEADS = tuple(round(each * 1e-6, 7) for each in (4, 6, 8, 10, 12, 14, 17, 20, 24, 28))
_GRAPHED_FROM = {
    "gpt-oss-120b": "26.06",
    "deepseek-v3": "26.06",
    "qwen3-235b-a22b": "26.06",
    "qwen3-30b-a3b": "26.08",
}
"""Releases from which a model's passes seem to be CUDA graphs (Blackwell, MXFP8): read off the
given rows, which become faster there by what the host had taken."""
_RECOMPUTED = {("nemotron-3-nano", "H100"), ("nemotron-3-super", "GB200")}
"""Models that seem to recompute mixtures on a device: read off the given rows' seconds, where they
would not fit else."""
_SAME_CHIP = {"H200": "H100", "GH200": "H100"}
"""Devices that differ from one that was fitted in their memory alone."""


def _device(system: str) -> str:
    """Return the longest device's name that is in a system's, say GB200 of DGX-GB200."""
    known = [name for name in MACHINES if name.partition(" ")[0] in system]
    return max(known, key=lambda name: len(name.partition(" ")[0]), default=system)


def _fitted(row: "BridgeRow | MLPerfRow") -> str:
    """Return the framework and device whose constants a row has."""
    return f"{MEGATRON_CORE.name} on {_SAME_CHIP.get(row.device, row.device)}"


@dataclass(frozen=True)
class BridgeRow:
    """A line of NVIDIA's tables, in which models and systems have our names."""

    row_id: str
    release: str
    task: str
    model: str
    variant: str | None
    fsdp: int | None
    system: str
    gpus: PositiveInt
    precision: str | None
    global_batch_samples: PositiveInt
    micro_batch_samples: PositiveInt
    seq_tokens: PositiveInt
    tp: PositiveInt | None
    pp: PositiveInt | None
    cp: PositiveInt | None
    vp: PositiveInt | None
    ep: PositiveInt | None

    def __post_init__(self) -> None:
        name = self.model.lower().replace("_", "-").replace(" ", "-")
        name = name.replace("deepseekv", "deepseek-v").replace("-vl-", "-")  # by its text blocks
        object.__setattr__(self, "model", name)
        object.__setattr__(self, "system", _device(self.system))

    @property
    def device(self) -> str:
        """The device's name."""
        return self.system


def dtype(precision: str | None) -> str:
    """Return the products' dtype of a precision's name: FP8 of any recipe, NVFP4, or BF16.

    None is FP8, by the text of the page whose tables state none (the set's README).
    """
    name = (precision or "FP8").upper()
    if "FP4" in name:
        return "float4"
    return "bfloat16" if name.startswith(("BF16", "FP16")) else "float8"


def bridge_shape(row: BridgeRow) -> Shape:
    """Return a row's model."""
    known = shape(row.model)
    return replace(known, predictors=0) if row.variant == "w/o MTP" else known


def graphs(row: BridgeRow) -> bool:
    """Return whether a row's passes seem to be CUDA graphs."""
    since = _GRAPHED_FROM.get(row.model)
    newer = since is not None and row.release >= since
    return newer and row.device[0] != "H" and "MXFP8" in (row.precision or "")


def _bridge(row: BridgeRow, constants: Constants) -> RowPrediction:
    ranks = row.gpus // (row.pp or 1)  # one table prints more expert ranks than a stage has
    layout = _layout(
        row,
        ep=min(row.ep or 1, ranks),
        zero=3 if (row.fsdp or 0) > 1 else 1,
        recompute="experts" if (row.model, row.device) in _RECOMPUTED else "nothing",
    )
    frozen = row.task == "lora"
    run = _training(row, bridge_shape(row), layout, constants)
    return _prediction(
        replace(run, framework=MEGATRON_BRIDGE, trains_weights=not frozen, graphs=graphs(row))
    )


def _bridge_measured(values: Values) -> RowMeasured:
    rate = values["tokens_per_s_per_gpu"]
    tokens = float(values["global_batch_samples"]) * float(values["seq_tokens"])
    return RowMeasured(tokens / (float(rate) * float(values["gpus"])) if rate else None)


def _regression(row: BridgeRow) -> str | None:
    known = row.model == "gpt-oss-120b" and row.release == "26.06.01"
    return "the release notes call it a regression" if known else None


@dataclass(frozen=True)
class MLPerfRow:
    """A submission."""

    row_id: str
    gpu_type: str
    gpus: PositiveInt
    tp: PositiveInt | None
    pp: PositiveInt | None
    vp: PositiveInt | None
    cp: PositiveInt | None
    micro_batch_samples: PositiveInt
    global_batch_samples: PositiveInt
    seq_tokens: PositiveInt
    precision: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu_type", _device(self.gpu_type))

    @property
    def device(self) -> str:
        """The device's name."""
        return self.gpu_type


def _mlperf_set(name: str, model: Shape) -> PublishedSet:
    def predict(row: MLPerfRow, constants: Constants) -> RowPrediction:
        return _prediction(_training(row, model, _layout(row, zero=1), constants))

    return PublishedSet(
        name=name,
        file=f"{name}/step_times.csv",
        row=MLPerfRow,
        machine=_fitted,
        predict=predict,
        work=partial(_work, model=lambda _: model),
        names={"gpu_type": MACHINES},
    )


def _layout(row: BridgeRow | MLPerfRow, **rest: Any) -> ParallelLayout:
    """Return a row's layout; a batch that is no whole number of microbatches is filled up."""
    tp, cp, pp = row.tp or 1, row.cp or 1, row.pp or 1
    chunks = (row.vp or 1) if pp > 1 else 1
    slot = row.micro_batch_samples * max(row.gpus // (tp * cp * pp), 1)
    return on_gpus(
        row.gpus,
        math.ceil(row.global_batch_samples / slot) * slot,
        tp=tp,
        cp=cp,
        pp=pp,
        chunks=chunks,
        microbatch_samples=row.micro_batch_samples,
        method="interleaved" if chunks > 1 else "flush",
        **rest,
    )


def _training(
    row: BridgeRow | MLPerfRow, model: Shape, layout: ParallelLayout, constants: Constants
) -> TrainingSetup:
    links, number = Links(machine(row.device)), dtype(row.precision)
    return TrainingSetup(model, layout, links, MEGATRON_CORE, constants, number, row.seq_tokens)


def _prediction(run: TrainingSetup) -> RowPrediction:
    return RowPrediction(step(run).seconds, "data sheet, fitted constants")


def _work(row: Any, model: Callable[[Any], Shape]) -> float:
    """Return a step's seconds at the precision's peak (6 FLOPs a token and active weight)."""
    flops = 6 * model(row).active_parameters * row.global_batch_samples * row.seq_tokens
    return float(flops / row.gpus / machine(row.device).peak(dtype(row.precision)))


BRIDGE = PublishedSet(
    name="megatron_bridge",
    file="megatron_bridge/throughput.csv",
    row=BridgeRow,
    machine=_fitted,
    predict=_bridge,
    measured=_bridge_measured,
    work=partial(_work, model=bridge_shape),
    group=lambda row: f"{row.model}{dtype(row.precision)}{row.gpus}{row.ep}{row.pp}",
    kind=lambda row: bridge_shape(row).kind,
    anomaly=_regression,
    efficiencies=EFFICIENCIES,
    overheads=OVERHEADS,
    names={"model": SHAPES, "system": MACHINES},
)
LLAMA_405B = _mlperf_set("mlperf_405b", shape("llama3.1-405b"))
GPT3 = _mlperf_set("mlperf_gpt3", shape("gpt3-175b"))
