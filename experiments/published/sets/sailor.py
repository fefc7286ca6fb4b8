"""sailor: Megatron-DeepSpeed in float32 on nodes of GH200 and on mixed RTX machines (SOSP '25)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from experiments.published.published_set import DegreesRow, RowPrediction, given, layout_of
from pipekit.choices import require_choice
from pipekit.performance.constants import DATA_SHEET, Constants
from pipekit.performance.devices import Machine, machine
from pipekit.performance.memory import peak_bytes
from pipekit.performance.predict import step
from pipekit.performance.shapes import shape
from pipekit.performance.step import TrainingStep, in_flight
from pipekit.performance.training import MEGATRON_DEEPSPEED, training
from pipekit.reading import read_table

Numbers = NDArray[np.float64]
_DEVICES = {
    "GH-96": "GH200",
    "RTX-2080": "RTX 2080",
    "RTX-3090": "RTX 3090",
    "Titan-RTX": "Titan RTX",
    "A100-40": "A100 40GB",
    "A100-80": "A100 80GB",
    "V100-16": "V100 16GB",
}
_SHAPES = {"OPT-350": "opt-350m", "GPT-Neo-2.7": "gpt-neo-2.7b", "LLAMA-3-8": "llama3-8b"}
_HEADLESS = "GPT-Neo-2.7"  # whose profile lacks the head
_FITTED, _NO_LOSSES = "clariden", Constants(1.0, 0.0)
"""Constants are the share of the network's fit that messages get while all nodes send, and how long
a profile waits after each pass.  On other clusters profiles and fits are taken as they are."""
_VOCABULARY, _SEQ_TOKENS = 50257, 2048
_EAGER_BYTES = 4e6  # a larger message waits until its receiver is there (NCCL's buffer)
_UPDATE_BYTES = 28  # moved for each weight by Adam in float32
_STATE_BYTES = 16  # weight, gradient and Adam's moments
_WASTE, _RUNTIME_BYTES = 1.15, 3e9  # activations with the allocator's gaps, a factor; the runtime's
_LOGITS = 3  # in float32: logits, losses' softmax, gradient


class _GpuPlace(NamedTuple):
    """Where a replica of a stage runs: GPUs of one node, and how many of them share its tensors."""

    gpu: str
    gpus: int
    tp: int


@dataclass(frozen=True)
class SailorRow(DegreesRow):
    """One plan."""

    name = "sailor"
    file = "sailor/plans.csv"
    machine = "Megatron-DeepSpeed by layer profiles on GH200"
    names: ClassVar = {"model": _SHAPES}
    efficiencies = (0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
    overheads = (0.0, 1e-4, 1.5e-4, 2e-4, 2.5e-4, 3e-4)

    plan_file: str
    cluster: str
    model: str
    microbatches_per_replica: PositiveInt
    plan_json: str

    @cached_property
    def plan(self) -> tuple[list[list[_GpuPlace]], list[int]]:
        """The places of each stage's replicas, and its number of layers; ValueError if wrong."""
        try:
            read = json.loads(self.plan_json)
            counts = [len(each) for each in read["layers_per_stage"]]
            places = [
                [_GpuPlace(gpu, count, tp) for ((gpu, count, _), *_), tp in stage]
                for stage in read["tmp_per_stage"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"plan_json is no plan of Sailor's: {error}") from None
        if [len(stage) for stage in places] != [self.dp] * self.pp or len(counts) != self.pp:
            raise ValueError(f"plan_json has not {self.pp} stages of {self.dp} replicas each")
        return places, counts

    @property
    def work(self) -> float:
        samples = self.micro_batch_samples * self.microbatches_per_replica / (self.pp * self.tp)
        return samples * float(layers(self.model, 1)[:, 0].sum())

    @property
    def anomaly(self) -> str | None:
        copied = ("clariden", "N4_D4"), ("mit", "N2_D1")
        if (self.cluster, self.plan_file.rpartition("plan_config_")[2]) in copied:
            return "shares measured numbers with another plan"
        return None

    def predict(self, constants: Constants) -> RowPrediction:
        places, counts = self.plan
        try:
            sizes = layers(self.model, self.tp)
            # As many layers as the plan lists for each stage, and on the last what is left.
            edges = [0, *accumulate(counts[:-1]), len(sizes)]
            stages = [slice(a, b) for a, b in pairwise(edges)]
            weights, _, kept = np.array([sizes[own].sum(axis=0) for own in stages]).T
            if self.pp > 1 and self.model == _HEADLESS:  # the tied table is there once more
                weights[-1] += _VOCABULARY * _hidden(self.model) / self.tp
            losses = constants if self.cluster == _FITTED else _NO_LOSSES
            replicas = zip(*places, strict=True)
            passes_s = max(_replica_s(self, each, stages, losses) for each in replicas)
            updates = zip(places, weights.tolist(), strict=True)
            update_s = max(_update_s(self, *each) for each in updates)
        except ValueError as missing:
            found = self.by_data_sheet(constants)
            return replace(found, basis=f"{found.basis}; {missing}")
        flying = np.array(in_flight("flush", self.pp, self.microbatches_per_replica))
        memory = _STATE_BYTES * weights + _WASTE * flying * self.micro_batch_samples * kept
        logits = self.micro_batch_samples * _SEQ_TOKENS * _VOCABULARY / self.tp
        memory[-1] += 4 * _LOGITS * logits
        basis = "layer profiles, network fits, fitted constants"
        return RowPrediction(passes_s + update_s, basis, _RUNTIME_BYTES + float(memory.max()))

    def by_data_sheet(self, constants: Constants) -> RowPrediction:
        """Return what data sheets alone say, all machines being as slow as the slowest."""
        places = [place for stage in self.plan[0] for place in stage]
        slowest = min(map(_machine, places), key=lambda each: each.peak("float32"))
        layout = layout_of(self, microbatches=self.microbatches_per_replica)
        model, framework = shape(_SHAPES[self.model]), MEGATRON_DEEPSPEED
        run = training(model, layout, slowest, framework, seq_tokens=_SEQ_TOKENS, dtype="float32")
        basis = "data sheet, fitted constants"
        return RowPrediction(step(run).seconds, basis, max(peak_bytes(run)), kind=DATA_SHEET)


def _replica_s(
    row: SailorRow, places: Sequence[_GpuPlace], stages: Sequence[slice], constants: Constants
) -> float:
    """Return the seconds of a replica's passes and transfers."""
    pairs = zip(places, stages, strict=True)
    passes = [_passes(row, place, own, constants.overhead_s) for place, own in pairs]
    if row.model == _HEADLESS:  # its head takes OPT's, by hidden size
        opt = profile("OPT-350", places[-1].gpu, places[-1].tp)
        samples = row.micro_batch_samples if row.micro_batch_samples in opt else max(opt)
        wider = _hidden(row.model) / _hidden("OPT-350") * row.micro_batch_samples / samples
        passes[-1] = passes[-1] + opt[samples][-1] * wider
    size = layers(row.model, row.tp)[1][1] * row.micro_batch_samples
    part = size / row.tp  # each tensor-parallel rank sends its own
    forward_s, backward_s = np.transpose(passes).tolist()
    return TrainingStep(
        tuple(forward_s),
        tuple(backward_s),
        row.microbatches_per_replica,
        transfer_s=tuple(
            size / (bandwidth(a[:2], b[:2], part) * constants.efficiency)
            for a, b in pairwise(places)
        ),
        blocking=part > _EAGER_BYTES,
    ).seconds


def _passes(row: SailorRow, place: _GpuPlace, own: slice, waits_s: float) -> Numbers:
    """Return the seconds of a stage's forward and backward.

    A profile waits for the device after each pass, which a training does not: what exceeds the
    device's own time, known from the largest microbatch, shrinks by that wait.
    """
    known = profile(row.model, place.gpu, place.tp)
    samples, largest = row.micro_batch_samples, max(known)
    device = known[largest][own] / largest * samples
    profiled = known[samples][own] if samples in known else device
    shorter = np.maximum(device, profiled - waits_s)
    passes: Numbers = np.minimum(profiled, shorter).sum(axis=0)
    return passes


def _update_s(row: SailorRow, places: Sequence[_GpuPlace], weights: float) -> float:
    """Return the seconds of a stage's update: a ring's all-reduce over its nodes, then Adam."""
    update = _UPDATE_BYTES * weights / _machine(places[0]).device.memory_bandwidth
    if row.dp == 1:
        return update
    size = 4 * weights * row.tp
    ring = pairwise([*places, places[0]])
    slowest = min(bandwidth(a[:2], b[:2], size / row.dp) for a, b in ring)
    return 2 * (row.dp - 1) / row.dp * size / slowest + update


def _machine(place: _GpuPlace) -> Machine:
    require_choice("gpu", place.gpu, _DEVICES)
    return machine(_DEVICES[place.gpu])


def _hidden(model: str) -> int:
    return shape(_SHAPES[model]).hidden


def layers(model: str, tp: int) -> Numbers:
    """Return ``[layers, 3]`` of each layer on a tensor-parallel rank; ValueError if unknown.

    These are its weights, and bytes of a sample: those that leave it, and those that it keeps.
    """
    table = _read(_input("layer_sizes"))
    found = table[(table["model"] == model) & (table["tp"] == tp)]
    if found.empty:
        raise ValueError(f"there are no layer sizes of {model} for tp {tp}")
    sizes: Numbers = found[["params_floats", "act_output_bytes", "act_mem_bytes"]].to_numpy(float)
    return sizes


def profile(model: str, gpu: str, tp: int) -> Mapping[int, Numbers]:
    """Return the seconds ``[layers, 2]`` of each layer's forward and backward, by samples of a
    microbatch; ValueError if unknown.

    The planner's, one of which is a copy of another model's, count only where Sailor's own
    validation has none.
    """
    table = _read(_input("layer_profiles"))
    own = table[(table["model"] == model) & (table["gpu"] == gpu)]
    own = own[(own["source"] == own["source"].max()) & (own["tp"] == tp)]
    if own.empty:
        raise ValueError(f"there is no profile of {model} on {gpu} for tp {tp}")
    by_samples = own.sort_values("layer", kind="stable").groupby("micro_batch_samples")
    return {samples: each[["forward_s", "backward_s"]].to_numpy() for samples, each in by_samples}


_read = cache(read_table)


def bandwidth(sender: tuple[str, int], receiver: tuple[str, int], size: float) -> float:
    """Return bytes/s between nodes of so many GPUs of a kind, for messages of so many bytes.

    All GPUs of a node send at once; of other counts the nearest counts.
    """
    ways = _networks(_input("network_fits"))
    pairs = [way for way in ways if (way[0], way[2]) == (sender[0], receiver[0])]
    if not pairs:
        raise ValueError(f"there is no network between {sender[0]} and {receiver[0]}")
    way = min(pairs, key=lambda way: abs(way[1] - sender[1]) + abs(way[3] - receiver[1]))
    c2, c1, c0, peak = ways[way]
    log = math.log2(size / 1e6)
    return float(min(peak, max(c2 * log**2 + c1 * log + c0, 0.02) * 1e9))


@cache
def _networks(path: Path) -> dict[tuple[str, int, str, int], Numbers]:
    """Read what was fitted between nodes: networks of mixed GPUs before those of equal ones.

    By sender, how many of its GPUs send, and receiver likewise it is a bandwidth in GB/s by the
    logarithm of the MB of a message, as three coefficients; and its peak.
    """
    table = read_table(path).query("where == 'inter_node'")
    ends = ["sender_gpu", "sender_gpus", "receiver_gpu", "receiver_gpus"]
    fits = table.sort_values("file", ascending=False).set_index(ends)
    fits = fits[["c2", "c1", "c0", "peak_bytes_per_s"]]
    return dict(zip(fits.index, fits.to_numpy(), strict=True))


def _input(name: str) -> Path:
    path = given(f"sailor/{name}.csv")
    if path is None:
        raise ValueError("needs the set's layer profiles: name the folder of measurements")
    return path
