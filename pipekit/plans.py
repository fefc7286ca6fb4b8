"""A plan: which layers on which workers, and what that is predicted to cost."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import Literal

from pipekit.reading import printable, read_json
from pipekit.units import bytes_text, plural

_FORMAT = "pipekit plan 1"
_MOST = 10**6
Recompute = Literal["never", "except_last", "always"]


def stage_of_layers(balance: Sequence[int]) -> list[int]:
    """Return the stage in which each layer is, given how many layers each stage has."""
    return [stage for stage, layers in enumerate(balance) for _ in range(layers)]


@dataclass(frozen=True)
class StagePlan:
    """One stage of a plan.

    Attributes:
        first: its first layer.
        stop: the layer after its last.
        replicas: how many workers share its microbatches.
        recompute: which microbatches of a batch are recomputed.
        predicted_s: seconds a microbatch in steady state, by its replicas, with its all-reduce,
            without its transfers.
        memory_bytes: most bytes on one of its workers.
    """

    first: int
    stop: int
    replicas: int = 1
    recompute: Recompute = "never"
    predicted_s: float = 0.0
    memory_bytes: float = 0.0

    def __str__(self) -> str:
        return f"{layers_text(self.first, self.stop)} on {plural(self.replicas, 'worker')}"


@dataclass(frozen=True)
class Plan:
    """Which layers run where, and what to expect of it.

    Attributes:
        method: the planner's name, for reading only.
        stages: in the order of the layers, without gaps.
        microbatch_rows: rows of a microbatch (of a minibatch, where it is not cut).
        microbatches: microbatches of a batch that one pipeline runs between two updates.
        in_flight: microbatches that the first stage admits at once (NOAM in PipeDream).
        predicted_s: seconds a microbatch of one pipeline in steady state.
        why: what decided, in a sentence or two.

    Raises:
        ValueError: the stages do not follow one another from layer 0, or a number is none, below 1
            or above a million.
    """

    method: str
    stages: tuple[StagePlan, ...]
    microbatch_rows: int = 1
    microbatches: int = 1
    in_flight: int = 1
    predicted_s: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages or self.stages[0].first != 0:
            raise ValueError("a plan's first stage starts at layer 0")
        for before, after in pairwise(self.stages):
            if before.stop != after.first:
                raise ValueError(
                    f"a stage ends before layer {before.stop} and the next starts at layer "
                    f"{after.first}: stages follow one another without gaps"
                )
        if any(stage.stop <= stage.first or stage.replicas < 1 for stage in self.stages):
            raise ValueError("every stage of a plan needs at least one layer and one worker")
        if min(self.microbatch_rows, self.microbatches, self.in_flight) < 1:
            raise ValueError("a plan's microbatch_rows, microbatches and in_flight are at least 1")
        counts = self.microbatch_rows, self.microbatches, self.in_flight, self.layers, self.workers
        if max(counts) > _MOST:
            raise ValueError(f"a plan has no number of layers, workers or rows above {_MOST:,}")
        costs = [cost for stage in self.stages for cost in (stage.predicted_s, stage.memory_bytes)]
        for cost in (self.predicted_s, *costs):
            if not 0 <= cost < math.inf:
                raise ValueError(f"seconds and bytes of a plan are 0 or positive, not {cost}")

    @classmethod
    def by_hand(
        cls,
        balance: Sequence[int],
        *,
        rows: int = 1,
        replicas: Sequence[int] | None = None,
        recompute: Recompute = "never",
    ) -> "Plan":
        """Return a plan that nobody computed.

        ``balance`` and ``replicas`` are the layers and workers of each stage, by default one
        worker; ``rows`` those of a microbatch; ``recompute`` holds for every stage.
        """
        stops = [0, *accumulate(balance)]
        copies = replicas or [1] * len(balance)
        stages = (
            StagePlan(*ends, count, recompute)
            for ends, count in zip(pairwise(stops), copies, strict=False)
        )
        return cls("by hand", tuple(stages), microbatch_rows=rows)

    def to_megatron_layout(self, predictors: int = 0) -> str:
        """Return the string for Megatron-LM's ``--pipeline-model-parallel-layout``.

        A letter is a layer: E the embedding, t a transformer block, m one that predicts further
        tokens (MTP), of which ``predictors`` come right before L, the output with the loss.  Stages
        are separated by ``|``, commas mean nothing, and ``t*3`` is ttt.  (NVIDIA/Megatron-LM,
        megatron/core/transformer/pipeline_parallel_layer_layout.py, read at commit 00caa53.)

        Raises:
            ValueError: there are fewer layers than that, several stages have MTP layers, or a stage
                has replicas, which Megatron-LM's layout does not.
        """
        self._require_no_replicas("Megatron-LM")
        blocks = self.layers - 2 - predictors
        if blocks < 0 or predictors < 0:
            raise ValueError(
                f"{self.layers} layers are too few for an embedding, {predictors} MTP layers and "
                f"an output"
            )
        letters = "E" + "t" * blocks + "m" * predictors + "L"
        stages = [letters[stage.first : stage.stop] for stage in self.stages]
        homes = [number for number, stage in enumerate(stages) if "m" in stage]
        if len(homes) > 1:
            raise ValueError(
                f"MTP layers are in stages {homes[0]} and {homes[1]}: Megatron-LM wants all in one"
            )
        runs = [[(letter, len([*run])) for letter, run in groupby(stage)] for stage in stages]
        return "|".join(
            ",".join(letter if count == 1 else f"{letter}*{count}" for letter, count in stage)
            for stage in runs
        )

    def to_torchtitan(self, names: Sequence[str | Sequence[str]] | None = None) -> list[list[str]]:
        """Return stages' modules: torchtitan's ``pipeline_parallel_module_fqns_per_model_part``.

        ``names`` are the modules of each layer, one or several; by default Llama's: the first is
        the embedding, the last one the norm and the head.

        Raises:
            ValueError: there is not an entry for each layer, or a stage has several workers.
        """
        self._require_no_replicas("torchtitan")
        if names is None:
            blocks = (f"layers.{block}" for block in range(self.layers - 2))
            names = ["tok_embeddings", *blocks, ["norm", "lm_head"]]
        if len(names) != self.layers:
            raise ValueError(f"{len(names)} names do not fit a plan of {self.layers} layers")
        each = [[name] if isinstance(name, str) else list(name) for name in names]
        return [[*chain(*each[stage.first : stage.stop])] for stage in self.stages]

    def split_points(self, names: Sequence[str | Sequence[str]] | None = None) -> list[str]:
        """Return the module at which each stage but the first begins (:meth:`to_torchtitan`).

        They are the keys of ``split_spec`` of ``torch.distributed.pipelining.pipeline``, each with
        ``SplitPoint.BEGINNING``.
        """
        return [modules[0] for modules in self.to_torchtitan(names)[1:]]

    def _require_no_replicas(self, tool: str) -> None:
        if max(self.replicas) > 1:
            raise ValueError(
                f"the plan has {self.config} workers a stage: {tool}'s layout has one each, "
                f"and data parallelism beside it (plan.with_replicas({[1] * len(self.stages)}))"
            )

    def with_replicas(self, replicas: Sequence[int]) -> "Plan":
        """Return the plan with other numbers of workers a stage."""
        stages = (
            replace(stage, replicas=count)
            for stage, count in zip(self.stages, replicas, strict=True)
        )
        return replace(self, stages=tuple(stages))

    @property
    def balance(self) -> list[int]:
        """Layers of each stage."""
        return [stage.stop - stage.first for stage in self.stages]

    @property
    def layers(self) -> int:
        """How many layers there are in all."""
        return self.stages[-1].stop

    @property
    def workers(self) -> int:
        """How many workers it uses."""
        return sum(stage.replicas for stage in self.stages)

    @property
    def replicas(self) -> list[int]:
        """Workers of each stage."""
        return [stage.replicas for stage in self.stages]

    @property
    def config(self) -> str:
        """Replicas of each stage as PipeDream's Table 1 prints them, say "2-1-1"."""
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def memory_bytes(self) -> float:
        """Most bytes on any worker."""
        return max(stage.memory_bytes for stage in self.stages)

    def __repr__(self) -> str:
        lines = [f"{self.config}: {', '.join(map(str, self.stages))}"]
        lines.append(
            f"  {self.method}; {self.predicted_s * 1e3:.4g} ms a microbatch of "
            f"{plural(self.microbatch_rows, 'row')}, {self.microbatches} a batch, at most "
            f"{self.in_flight} in flight"
        )
        if self.memory_bytes:
            lines.append(f"  at most {bytes_text(self.memory_bytes)} on a worker")
        if self.why:
            lines.append(f"  {self.why}")
        return printable("\n".join(lines))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, making the folder if it is missing."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        record = {"format": _FORMAT, **asdict(self)}
        Path(path).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read back what :meth:`save` wrote; a ValueError says where the file is not a plan."""
        return read_json(path, cls, "a plan", _FORMAT)


def layers_text(first: int, stop: int) -> str:
    """Return the layers from ``first`` to ``stop - 1`` for a message: "layer 3", "layers 0-5"."""
    return f"layer {first}" if stop == first + 1 else f"layers {first}-{stop - 1}"
