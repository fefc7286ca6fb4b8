"""What is trained to compare two commits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import pipekit as pk
from experiments.bits.models import DEFERRED, DICTS, MIXED, PADDED, SKIPPING, TANH, TIED, Model
from experiments.torchgpipe.cells import as_drawn
from pipekit.schedules import asp, pipedream, replicate, two_bw
from pipekit.schedules.methods.by_name import METHODS

Call = tuple[str, Mapping[str, Any]]
"""A method of :class:`.drive.Training`, and its arguments."""


def train(batches: int, **how: Any) -> Call:
    return "train", {"batches": batches, **how}


THREE_CALLS: tuple[Call, ...] = (train(3), train(2), ("evaluate", {}))
MOMENTUM = partial(SGD, lr=0.05, momentum=0.9, weight_decay=0.01)


@dataclass(frozen=True)
class Case:
    """A small training."""

    name: str
    schedule: Callable[[], pk.Schedule]
    model: Model = MIXED
    optimizer: Callable[..., Optimizer] = MOMENTUM
    calls: Sequence[Call] = THREE_CALLS  # one after another
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the pipeline and its options


M = 8  # microbatches of a batch, of methods that have some
LOOPS = (
    *("interleaved", "interleaved-zero-bubble", "gis", "gis-h", "looped-bfs", "hanayo"),
    *("zb-v", "v-half", "v-min", "dualpipe-v"),
)
"""Methods with two stages a worker."""
STRAIGHT = ("flush", "2bw", "gpipe", "eager", "zb-h1", "zb-h2")
PIPEDREAM = ("pipedream", "pipedream-vertical-sync")
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

OTHER_SCHEDULES: dict[str, Callable[[], pk.Schedule]] = {
    "asp": partial(asp, 2),
    "asp, late": partial(asp, 2, delay=3),
    "bsp": partial(pipedream, [3]),
    "pipedream 2-1": partial(pipedream, [2, 1]),
    "pipedream 1-2": partial(pipedream, [1, 2]),
    "pipedream 2-1-1": partial(pipedream, [2, 1, 1]),
    "pipedream 2-1, no stashing": partial(pipedream, [2, 1], stashing=False),
    "pipedream 2-2, vertical sync": partial(pipedream, [2, 2], vertical_sync=True),
    "pipedream, few in flight": partial(pipedream, 3, in_flight=(2, 2, 1)),
    "2bw, flush after": partial(two_bw, 2, M, flush_after=(0, 2)),
    "2 x 2bw, flush after": lambda: replicate(two_bw(2, M, flush_after=(0, 2)), 2),
    **{
        f"2 x {name}": partial(METHODS[name], [2, 2], M)
        for name in (*STRAIGHT, "chimera", "model-parallel")
    },
    **{f"2 x {name}": partial(METHODS[name], [2] * 4, M) for name in ("interleaved", "zb-v")},
    "interleaved, three a worker": partial(METHODS["interleaved"], 6, M, workers=2),
    "reversed gpipe": lambda: as_drawn(3, M).repeat(),  # a table of a user's own
}

SAVED = {"checkpoints": True, "every": 2}
TOO_LARGE = pk.LossScale(initial=2.0**130, interval=2)
PLATEAU = tuple(("step_lr", {"metric": metric}) for metric in (1.0, 2.0, 3.0))
RESUMED: tuple[Call, ...] = (("rebuild", {}), ("resume", {}))
MODULES: dict[str, dict[str, Any]] = {
    "plain": {"checkpoint": "never"},
    "recomputed": {"checkpoint": "always"},
    "recomputed but last": {},
    "deferred batch norm": {"deferred_batch_norm": True},
}
FEATURES: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "recomputed": (STASHING, {"recompute": "always"}),
    "recomputed but last": (CUT, {"recompute": "except_last"}),
    "one stage recomputed": (("flush",), {"recompute": ("always", "never")}),
    "ties": (STASHING, {"model": TIED}),
    "ties, clipped": (CUT, {"model": TIED, "clip_norm": 0.05}),
    "skips": (EACH_KIND, {"model": SKIPPING, "stages": 4}),
    "skips, recomputed": (CUT, {"model": SKIPPING, "stages": 4, "recompute": "always"}),
    "dicts": (STRAIGHT, {"model": DICTS}),
    "mean over": (STRAIGHT, {"model": PADDED}),
    "deferred batch norm": (STRAIGHT, {"model": DEFERRED}),
    "bfloat16": (FEW, {"autocast": torch.bfloat16}),
    "float16, scaled": (CUT, {"autocast": torch.float16, "loss_scale": "dynamic"}),
    "loss scale": (FEW, {"loss_scale": 128.0}),
    "loss scale, too large": (CUT, {"loss_scale": TOO_LARGE}),
    "clipped": (EACH_KIND, {"clip_norm": 0.05}),
    "norm only": (FEW, {"clip_norm": float("inf")}),
    "scheduler": (FEW, {"lr_scheduler": partial(StepLR, step_size=2, gamma=0.5)}),
    "scheduler by call": (
        FEW,
        {
            "lr_scheduler": partial(ReduceLROnPlateau, patience=0),
            "lr_step": "call",
            "calls": (train(2), *PLATEAU, train(2)),
        },
    ),
    "rate set": (FEW, {"calls": (train(2), ("rate", {"rate": 0.02}), train(2))}),
    "groups": (FEW, {"groups": lambda _, p: {"weight_decay": 0.0} if p.dim() < 2 else {}}),
    "adam": (EACH_KIND, {"optimizer": partial(Adam, lr=0.01)}),
    "basis rotation": (FEW, {"optimizer": partial(pk.staleness.BasisRotation, lr=0.01, every=2)}),
    "no seed": (("gpipe",), {"stages": 1, "seed": None}),
    "other seed": (FEW, {"seed": 7}),
    "balance auto": (FEW, {"balance": "auto"}),
    "fewer": (CUT, {"model": TANH, "calls": (train(4, last_rows=3),)}),
    "stream": (
        EACH_KIND,
        {"calls": (train(9, stream=True, steps=7), train(9, stream=True, steps=2))},
    ),
    "outputs": (FEW, {"calls": (train(2, outputs=True), ("predict", {}))}),
    "metrics": (FEW, {"calls": (("evaluate", {"metrics": True}),)}),
    "loaded": (FEW, {"calls": (train(2), ("load", {}), train(2))}),
    "resumed between calls": (
        EACH_KIND,  # the third call is passed over
        {"calls": (train(3, **SAVED), *RESUMED, train(3, **SAVED), train(2))},
    ),
    "resumed within a call": (
        ONE_COPY,  # how far a call gets that is told to stop is the machine's to say
        {
            "calls": (
                *(train(6, **SAVED, stop_after=3), *RESUMED),
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
        for name, how in MODULES.items()
    },
}
"""Methods, and what is particular to the case: fields of :class:`Case`, or settings."""


def cases() -> Iterator[Case]:
    """Yield every case."""
    for method, stages, transport in product(BY_NAME, (2, 4), ("threads", "distributed")):
        if transport == "threads" or stages == 2:
            name = f"{method}, {stages} stages, {transport}"
            yield case(name, named(method, stages), transport=transport)
    for transport in "threads", "distributed":
        for name, schedule in OTHER_SCHEDULES.items():
            yield case(f"{name}, {transport}", schedule, transport=transport)
        finite = partial(named("flush", 3)().take, 3)
        yield case(f"finite flush, {transport}", finite, calls=(train(3),), transport=transport)
    for feature, (methods, how) in FEATURES.items():
        for number, method in enumerate(methods):
            schedule = named(method, how.get("stages", 2))
            yield case(f"{feature}, {method}", schedule, **how)
            if number == 1:  # processes start slowly
                name = f"{feature}, {method}, distributed"
                yield case(name, schedule, **how, transport="distributed")


def named(method: str, stages: int) -> Callable[[], pk.Schedule]:
    """Return what makes a method's schedule, of as many stages as it can have."""
    return partial(METHODS[method], max(stages, 4) if method in LOOPS else stages, M)


def case(name: str, schedule: Callable[[], pk.Schedule], **how: Any) -> Case:
    """Return a case; what is not a field of it is a setting."""
    how.pop("stages", None)
    own = {each.name: how.pop(each.name) for each in fields(Case) if each.name in how}
    return Case(name, schedule, **own, settings=how)
