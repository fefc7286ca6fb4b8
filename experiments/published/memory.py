"""Memory of each rank beside published logs: BigScience on V100, torchtitan on H100, Primus."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.published.published_set import layout_of
from pipekit.performance.constants import Constants
from pipekit.performance.devices import machine
from pipekit.performance.layout import ParallelLayout, Recompute
from pipekit.performance.memory import peak_bytes
from pipekit.performance.shapes import gpt, shape
from pipekit.performance.step import in_flight
from pipekit.performance.terms.collectives import Links
from pipekit.performance.training import MEGATRON_DEEPSPEED, TORCHTITAN, TrainingSetup
from pipekit.reading import read_table

_UNUSED = Constants(1.0, 0.0)  # of seconds alone
_RULES: dict[str, Recompute] = {"full": "everything", "selective": "selective"}


def memory(folder: Path) -> pd.DataFrame:
    """Return a row a set: mean and worst error of a rank's bytes, and their rank correlation."""
    tables = {
        "bigscience": _bigscience(read_table(folder / "memory/bigscience_v100_by_stage.csv")),
        "torchtitan": _torchtitan(read_table(folder / "memory/torchtitan_llama3.csv")),
        "primus": _primus(read_table(folder / "memory/primus_by_rank.csv")),
    }
    found = []
    for name, pairs in tables.items():
        frame = pd.DataFrame(pairs, columns=["predicted", "measured"])
        sizes = (frame["predicted"] / frame["measured"] - 1).abs()
        rank = frame.corr("spearman").loc["predicted", "measured"]
        found.append((name, len(frame), sizes.mean(), sizes.max(), rank))
    return pd.DataFrame(found, columns=["set", "rows", "mean", "worst", "rank"])


Pairs = Iterator[tuple[float, float]]  # predicted and measured bytes


def _bigscience(table: pd.DataFrame) -> Pairs:
    for _, stages in table.groupby("run"):
        run = stages.iloc[0]
        count = int(run.global_batch_samples / run.micro_batch_samples / run.dp)
        model = gpt("GPT", run.hidden_size, run.attention_heads, run.layers, run.vocabulary)
        layout = layout_of(run, microbatches=count, recompute="everything")
        how = MEGATRON_DEEPSPEED, _UNUSED, "float16", int(run.seq_tokens)
        peaks = peak_bytes(TrainingSetup(model, layout, Links(machine("V100 32GB")), *how))
        for stage, mib in zip(stages.stage, stages.peak_allocated_mib, strict=True):
            yield peaks[stage], mib * 2**20


def _torchtitan(table: pd.DataFrame) -> Pairs:
    """Yield runs of FSDP; a pipeline's local batch is cut into microbatches of one sample."""
    for run in table.itertuples():
        pieces = int(run.local_batch_samples) if run.pp > 1 else 1
        model = shape(run.model.lower().replace("llama-", "llama"))
        layout = ParallelLayout(
            tp=int(run.tp),
            cp=int(run.cp),
            pp=int(run.pp),
            dp=int(run.fsdp),
            chunks=2 if "interleaved" in str(run.schedule) else 1,
            microbatch_samples=int(run.local_batch_samples) // pieces,
            microbatches=pieces,
            zero=3,
            recompute=_RULES.get(run.activation_checkpointing, "nothing"),
        )
        how = TORCHTITAN, _UNUSED, "bfloat16", int(run.seq_tokens)
        peaks = peak_bytes(TrainingSetup(model, layout, Links(machine("H100")), *how))
        yield max(peaks), run.peak_memory_gib * 2**30


def _primus(table: pd.DataFrame) -> Pairs:
    """Yield the ranks between the second and the last but one, by the bytes of these two.

    They give the bytes of a microbatch's activations: the model's size is not published.
    """
    pp, microbatches = int(table["pp"][0]), int(table["microbatches"][0])
    kept = in_flight("flush", pp, microbatches)[1:-1]
    measured = table["peak_reserved_gib"].to_numpy()[1:-1] * 2**30
    predicted = np.interp(kept, [kept[-1], kept[0]], [measured[-1], measured[0]])
    yield from zip(predicted[1:-1].tolist(), measured[1:-1].tolist(), strict=True)
