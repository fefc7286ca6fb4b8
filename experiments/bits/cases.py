"""What is trained to compare two commits: data alone.

A setting goes by the name of the feature; ``drive.py`` says what that is to pipekit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Call = tuple[str, Mapping[str, Any]]  # what is done with a pipeline, and how: see drive.py


def train(batches: int, **how: Any) -> Call:
    """Return a call of ``train``."""
    return "train", {"batches": batches, **how}


THREE_CALLS: tuple[Call, ...] = (train(3), train(2), ("evaluate", {}))


@dataclass(frozen=True)
class Case:
    """A small training."""

    name: str
    method: str  # a name of the toolkit's, "asp" or "reversed gpipe" (a table of the user's own)
    stages: int | Sequence[int]  # how many, or the workers of each
    microbatches: int  # in a batch
    settings: Mapping[str, Any]  # of the pipeline
    # of the method: its own arguments, "replicas" for parallel pipelines, and "finite" for a table
    # of so many batches
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "mixed"  # one of ``models.MODELS``
    optimizer: str = "momentum"  # one of ``models.OPTIMIZERS``
    calls: Sequence[Call] = THREE_CALLS  # one after another


LOOPS = (
    *("interleaved", "interleaved-zero-bubble", "gis", "gis-h", "looped-bfs", "hanayo"),
    *("zb-v", "v-half", "v-min", "dualpipe-v"),
)
"""Methods with two stages a worker."""
STRAIGHT = ("flush", "2bw", "gpipe", "eager", "zb-h1", "zb-h2")
PIPEDREAM = ("pipedream", "pipedream-vertical-sync")
MINIBATCHES = ("model-parallel", *PIPEDREAM, "pipedream-no-stashing", "asp")
"""Methods whose batches are one microbatch each."""
BY_NAME = (
    *(*STRAIGHT, *LOOPS, "chimera", "dualpipe", "model-parallel", *PIPEDREAM),
    *("paci", "pipedream-no-stashing"),
)
STASHING = (
    *("flush", "2bw", "gpipe", "zb-h2", "interleaved", "zb-v", "dualpipe-v"),
    *("chimera", "dualpipe", "model-parallel", *PIPEDREAM),
)
"""Of methods whose tables differ in kind one each, without those that forget weights."""
EACH_KIND = (*STASHING, "pipedream-no-stashing")
ONE_COPY = tuple(name for name in EACH_KIND if name not in ("chimera", "dualpipe"))
"""Of two copies the running statistics become one mean wherever a call stops."""
FEW = ("flush", "2bw", "pipedream", "zb-v")
CUT = ("flush", "2bw", "zb-h1", "zb-v")  # some whose batches are several microbatches each

OTHER_METHODS: dict[str, tuple[str, int | Sequence[int], dict[str, Any]]] = {
    "asp": ("asp", 1, {"workers": 2}),
    "asp, late": ("asp", 1, {"workers": 2, "delay": 3}),
    "bsp": ("pipedream", (3,), {}),
    "pipedream 2-1": ("pipedream", (2, 1), {}),
    "pipedream 1-2": ("pipedream", (1, 2), {}),
    "pipedream 2-1-1": ("pipedream", (2, 1, 1), {}),
    "pipedream 2-1, no stashing": ("pipedream-no-stashing", (2, 1), {}),
    "pipedream 2-2, vertical sync": ("pipedream-vertical-sync", (2, 2), {}),
    "pipedream, few in flight": ("pipedream", 3, {"in_flight": (2, 2, 1)}),
    "2bw, flush after": ("2bw", 2, {"flush_after": (0, 2)}),
    "2 x 2bw, flush after": ("2bw", 2, {"flush_after": (0, 2), "replicas": 2}),
    **{f"2 x {name}": (name, 2, {"replicas": 2}) for name in STRAIGHT},
    "2 x interleaved": ("interleaved", 4, {"replicas": 2}),
    "2 x zb-v": ("zb-v", 4, {"replicas": 2}),
    "2 x chimera": ("chimera", 2, {"replicas": 2}),
    "2 x model-parallel": ("model-parallel", 2, {"replicas": 2}),
    "interleaved, three a worker": ("interleaved", 6, {"workers": 2}),
    "reversed gpipe": ("reversed gpipe", 3, {}),
    "finite flush": ("flush", 3, {"finite": 3}),
}
"""Method, stages, options."""

SAVED = {"checkpoints": True, "every": 2}
TOO_LARGE = {"initial": 2.0**130, "interval": 2}
FEATURES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "recomputed": (STASHING, {"recompute": "always"}),
    "recomputed but last": (CUT, {"recompute": "except_last"}),
    "one stage recomputed": (("flush",), {"recompute": ("always", "never")}),
    "ties": (STASHING, {"model": "tied"}),
    "ties, clipped": (CUT, {"model": "tied", "clip_norm": 0.05}),
    "skips": (EACH_KIND, {"model": "skipping", "stages": 4}),
    "skips, recomputed": (CUT, {"model": "skipping", "stages": 4, "recompute": "always"}),
    "dicts": (STRAIGHT, {"model": "dicts"}),
    "mean over": (STRAIGHT, {"model": "padded"}),
    "deferred batch norm": (STRAIGHT, {"model": "deferred"}),
    "bfloat16": (FEW, {"autocast": "bfloat16"}),
    "float16, scaled": (CUT, {"autocast": "float16", "loss_scale": "dynamic"}),
    "loss scale": (FEW, {"loss_scale": 128.0}),
    "loss scale, too large": (CUT, {"loss_scale": TOO_LARGE}),
    "clipped": (EACH_KIND, {"clip_norm": 0.05}),
    "norm only": (FEW, {"clip_norm": float("inf")}),
    "scheduler": (FEW, {"lr_scheduler": "step"}),
    "scheduler by call": (
        FEW,
        {
            "lr_scheduler": "plateau",
            "lr_step": "call",
            "calls": (train(2), *(("step_lr", {"metric": k}) for k in (1.0, 2.0, 3.0)), train(2)),
        },
    ),
    "rate set": (FEW, {"calls": (train(2), ("rate", {"rate": 0.02}), train(2))}),
    "groups": (FEW, {"groups": "no decay of vectors"}),
    "adam": (EACH_KIND, {"optimizer": "adam"}),
    "basis rotation": (FEW, {"optimizer": "basis rotation"}),
    "no seed": (("gpipe",), {"stages": 1, "seed": None}),
    "other seed": (FEW, {"seed": 7}),
    "balance auto": (FEW, {"balance": "auto"}),
    "fewer": (CUT, {"model": "tanh", "calls": (train(4, last_rows=3),)}),
    "stream": (
        EACH_KIND,
        {"calls": (train(9, stream=True, steps=7), train(9, stream=True, steps=2))},
    ),
    "outputs": (FEW, {"calls": (train(2, outputs=True), ("predict", {}))}),
    "metrics": (FEW, {"calls": (("evaluate", {"metrics": True}),)}),
    "loaded": (FEW, {"calls": (train(2), ("load", {}), train(2))}),
    "resumed between calls": (
        EACH_KIND,  # the third call is passed over
        {
            "calls": (
                *(train(3, **SAVED), ("rebuild", {}), ("resume", {})),
                *(train(3, **SAVED), train(2)),
            )
        },
    ),
    "resumed within a call": (
        ONE_COPY,  # how far a call gets that is told to stop is the machine's to say
        {
            "calls": (
                *(train(6, **SAVED, stop_after=3), ("rebuild", {}), ("resume", {})),
                train(6, **SAVED, only_losses=True),
            )
        },
    ),
    **{
        rule: (("pipedream-no-stashing",), {"stages": 3, "mitigation": rule})
        for rule in ("spectrain", "pipeoptim", "pipemare:anneal=5", "error-feedback")
    },
    "gap-aware": (("pipedream", "2bw"), {"stages": 3, "mitigation": "gap-aware"}),
    **{
        f"module, {name}": (("gpipe",), {"calls": (("module", {"steps": 3, **how}),)})
        for name, how in dict[str, dict[str, Any]](
            {
                "plain": {"checkpoint": "never"},
                "recomputed": {"checkpoint": "always"},
                "recomputed but last": {},
                "deferred batch norm": {"deferred_batch_norm": True},
            }
        ).items()
    },
}
"""Methods, and what is particular to the case: settings of the pipeline if nothing else."""


def cases() -> Iterator[Case]:
    """Yield every case."""
    for method, stages, transport in product(BY_NAME, (2, 4), ("threads", "distributed")):
        if transport == "threads" or stages == 2:
            name = f"{method}, {stages} stages, {transport}"
            yield of(name, method, stages=stages, transport=transport)
    how: dict[str, Any]
    for name, (method, workers, options) in OTHER_METHODS.items():
        calls = (train(options["finite"]),) if "finite" in options else THREE_CALLS
        for transport in "threads", "distributed":
            how = {"stages": workers, "options": options, "calls": calls, "transport": transport}
            yield of(f"{name}, {transport}", method, **how)
    for feature, (methods, how) in FEATURES.items():
        for number, method in enumerate(methods):
            yield of(f"{feature}, {method}", method, **how)
            if number == 1:  # processes start slowly
                yield of(
                    f"{feature}, {method}, distributed", method, **how, transport="distributed"
                )


def of(name: str, method: str, stages: int | Sequence[int] = 2, **how: Any) -> Case:
    """Return a case with as many stages and microbatches as the method can have."""
    if isinstance(stages, int) and method in LOOPS:
        stages = max(stages, 4)
    microbatches = 1 if method in MINIBATCHES else 8
    own = {key: how.pop(key) for key in ("options", "model", "optimizer", "calls") if key in how}
    return Case(name, method, stages, microbatches, how, **own)
