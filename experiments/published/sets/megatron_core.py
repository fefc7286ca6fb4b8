"""Megatron-Core's trainings: NVIDIA's throughput tables, and MLPerf's submissions."""

import math
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, PositiveInt

from experiments.published.published_set import Row, RowPrediction, Size, letters
from pipekit.choices import require_choice
from pipekit.performance.constants import Constants
from pipekit.performance.devices import MACHINES, machine
from pipekit.performance.layout import on_gpus
from pipekit.performance.predict import step
from pipekit.performance.shapes import SHAPES, Shape, shape
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import MEGATRON_BRIDGE, MEGATRON_CORE, TrainingSetup, on

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
_DTYPES = {"FP4": "float4", "FP8": "float8", "BF16": "bfloat16", "FP16": "bfloat16"}
_BASIS = "data sheet, fitted constants"
Degree = Annotated[PositiveInt, BeforeValidator(lambda cell: cell or 1)]
"""Of parallelism; 1 where a file leaves it empty."""


def _device(system: str) -> str:
    """Return the device in a system's name, say GB200 of DGX-GB200: that of the longest name.

    Of one that is sold with two memories it is that whose memory the name has, too.
    """
    chips = {name: letters(re.sub(r" \d+GB", "", name)) for name in MACHINES}
    text = letters(re.sub(r"(?<=\d)\W+(?=\d)", "x", system))  # of H100 80GB: two numbers
    found = [name for name, chip in chips.items() if re.search(rf"{chip}(?!\d)", text)]
    return max(
        found, key=lambda name: (len(chips[name]), name.split()[-1] in system), default=system
    )


def _without_images(model: str) -> str:
    """Return the name of the model of texts in one that reads images (VL), too."""
    return re.sub("[-_ ]VL(?=[-_ ])", "", model, flags=re.IGNORECASE)


Device = Annotated[str, AfterValidator(_device)]


@dataclass(frozen=True)
class MegatronRow(Row):
    """A training on devices of one name."""

    gpus: PositiveInt
    precision: str | None
    global_batch_samples: PositiveInt
    micro_batch_samples: PositiveInt
    seq_tokens: PositiveInt
    tp: Degree
    pp: Degree
    cp: Degree
    vp: Size  # 0 as Megatron's None

    device_column: ClassVar[str]

    @property
    def device(self) -> str:
        return str(getattr(self, self.device_column))

    @property
    def shape(self) -> Shape:
        """The model."""
        raise NotImplementedError

    @property
    def machine(self) -> str:
        return on(MEGATRON_CORE, machine(self.device))

    @property
    def dtype(self) -> str:
        """Of the products, by a precision's name: FP8 of any recipe, NVFP4, or BF16.

        None is FP8, by the text of the page whose tables state none (the set's README).
        """
        known = re.search("|".join(_DTYPES), (self.precision or "FP8").upper())
        if known is None:
            raise ValueError(f"precision is {self.precision!r}: give BF16, FP16, FP8 or FP4")
        dtype = _DTYPES[known[0]]
        if dtype == "float4":  # that it has no units for
            require_choice(f"dtype on {self.device}", dtype, machine(self.device).dtypes)
        return dtype

    @property
    def work(self) -> float:
        """A step's seconds at the precision's peak (6 FLOPs a token and active weight)."""
        flops = 6 * self.shape.active_parameters * self.global_batch_samples * self.seq_tokens
        return float(flops / self.gpus / machine(self.device).peak(self.dtype))

    def training(self, constants: Constants, **rest: Any) -> TrainingSetup:
        """Return the training; a batch that is not a whole number of microbatches is filled up.

        ``rest`` are further fields of its layout.
        """
        slot = self.micro_batch_samples * max(self.gpus // (self.tp * self.cp * self.pp), 1)
        layout = on_gpus(
            self.gpus,
            math.ceil(self.global_batch_samples / slot) * slot,
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            chunks=max(self.vp, 1) if self.pp > 1 else 1,
            microbatch_samples=self.micro_batch_samples,
            **rest,
        )
        layout.require_suited(self.shape)
        links = Links(machine(self.device))
        return TrainingSetup(
            self.shape, layout, links, MEGATRON_CORE, constants, self.dtype, self.seq_tokens
        )


@dataclass(frozen=True)
class BridgeRow(MegatronRow):
    """A line of NVIDIA's tables, in which models and systems have our names."""

    name = "megatron_bridge"
    file = "megatron_bridge/throughput.csv"
    names: ClassVar = {"model": SHAPES, "system": MACHINES}
    device_column = "system"
    efficiencies = tuple(round(0.42 + 0.03 * each, 2) for each in range(13))
    overheads = tuple(round(each * 1e-6, 7) for each in (4, 6, 8, 10, 12, 14, 17, 20, 24, 28))

    release: str
    task: Annotated[str, AfterValidator(letters)]
    model: Annotated[str, AfterValidator(_without_images)]
    variant: str | None
    fsdp: int | None
    system: Device
    ep: Degree

    @property
    def shape(self) -> Shape:
        known = shape(self.model)
        return replace(known, predictors=0) if self.variant == "w/o MTP" else known

    @property
    def graphs(self) -> bool:
        since = _GRAPHED_FROM.get(self.model)
        newer = since is not None and self.release >= since
        return newer and self.device[0] != "H" and "MXFP8" in (self.precision or "")

    @property
    def stage_ep(self) -> int:
        """Its expert ranks; one table prints more of them than a stage has."""
        return min(self.ep, self.gpus // self.pp)

    @property
    def group(self) -> str:
        return f"{self.model}{self.dtype}{self.gpus}{self.ep}{self.pp}"

    @property
    def kind(self) -> str:
        return self.shape.kind

    @property
    def anomaly(self) -> str | None:
        known = self.model == "gpt-oss-120b" and self.release == "26.06.01"
        return "the release notes call it a regression" if known else None

    def predict(self, constants: Constants) -> RowPrediction:
        run = self.training(
            constants,
            ep=self.stage_ep,
            zero=3 if (self.fsdp or 0) > 1 else 1,
            recompute="experts" if (self.model, self.device) in _RECOMPUTED else "nothing",
        )
        trains = self.task != "lora"
        run = replace(run, framework=MEGATRON_BRIDGE, trains_weights=trains, graphs=self.graphs)
        return RowPrediction(step(run).seconds, _BASIS)


@dataclass(frozen=True)
class MLPerfRow(MegatronRow):
    """A submission."""

    names: ClassVar = {"gpu_type": MACHINES}
    device_column = "gpu_type"
    degrees = "tp", "pp", "cp", "dp"

    gpu_type: Device
    dp: Size = 0
    microbatches_per_step: Size = 0
    layers: Size = 0
    cuda_graph: str | None = None

    def predict(self, constants: Constants) -> RowPrediction:
        run = self.training(constants, zero=1)
        needed = {"layers": self.shape.layers, "microbatches_per_step": run.layout.microbatches}
        for name, count in needed.items():
            if getattr(self, name) not in (0, count):
                raise ValueError(f"{name} is {getattr(self, name)}, and {count} by model and batch")
        graphs = (self.cuda_graph or "").lower() == "true"
        return RowPrediction(step(replace(run, graphs=graphs)).seconds, _BASIS)


@dataclass(frozen=True)
class Llama405BRow(MLPerfRow):
    """Of Llama 3.1 405B."""

    name = "mlperf_405b"
    file = "mlperf_405b/step_times.csv"
    shape = SHAPES["llama3.1-405b"]


@dataclass(frozen=True)
class GPT3Row(MLPerfRow):
    """Of GPT-3."""

    name = "mlperf_gpt3"
    file = "mlperf_gpt3/step_times.csv"
    shape = SHAPES["gpt3-175b"]
