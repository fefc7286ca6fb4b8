"""The names that users write, and where to find what they name: one line each.

Nothing is imported until it is asked for, so that help and errors list names at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pipekit.choices import require_choice
from pipekit.extras import imported


@dataclass(frozen=True)
class NamedPlace:
    """Where to find a function or class, "module:name", with its first arguments and options."""

    where: str
    options: Mapping[str, Any] = field(default_factory=dict)
    first: tuple[Any, ...] = ()

    def load(self) -> Any:
        """Return it, with its options."""
        module, _, name = self.where.partition(":")
        found = getattr(imported(module), name)
        return partial(found, *self.first, **self.options)


@dataclass(frozen=True)
class Method(NamedPlace):
    """Where to find a method, and how its counts are given."""

    stages_a_worker: int = 1
    takes_workers: bool = False  # since it can have more stages on each
    replicas: str = "pipelines"  # side by side, "stages" on workers of their own, or "none"
    microbatches: bool = True  # several a batch; else each is one microbatch
    ops: tuple[str, ...] = ()  # of its workers' tasks, beside passes and updates


@dataclass(frozen=True)
class TransportName(NamedPlace):
    """Where to find what runs the workers over a transport, given their devices."""

    in_process: bool = False  # threads, which objects of this process watch, slow and give numbers


P = TypeVar("P", bound=NamedPlace)


class Names(dict[str, P]):
    """Names of one kind."""

    def __init__(self, kind: str, places: Mapping[str, P]) -> None:
        super().__init__(places)
        self.kind = kind

    def __str__(self) -> str:
        return ", ".join(self)

    def require(self, name: str) -> None:
        """Raise ValueError unless it is one of them; the message has the closest."""
        require_choice(self.kind, name, self)

    def load(self, name: str) -> Any:
        """Return what is named; raises ValueError as :meth:`require` does."""
        self.require(name)
        return self[name].load()


TRANSPORTS = Names(
    "transport",
    {
        "threads": TransportName("pipekit.engine.transports.threads:over_threads", in_process=True),
        "distributed": TransportName("pipekit.engine.transports.processes.runner:over_processes"),
    },
)
"""The ways to run workers."""


def _method(where: str, **about: Any) -> Method:
    return Method(f"pipekit.schedules.methods.{where}", **about)


_LOOPED = {"stages_a_worker": 2, "takes_workers": True}
_V = {"stages_a_worker": 2}
_PIPEDREAM = {"replicas": "stages", "microbatches": False}

METHODS = Names(
    "method",
    {
        "gpipe": _method("gpipe:gpipe"),
        "flush": _method("one_f_one_b:flush"),
        "model-parallel": _method("gpipe:model_parallel", microbatches=False),
        "pipedream": _method("pipedream:pipedream", **_PIPEDREAM),
        "pipedream-vertical-sync": _method(
            "pipedream:pipedream", options={"vertical_sync": True}, **_PIPEDREAM
        ),
        "pipedream-no-stashing": _method(
            "pipedream:pipedream", options={"stashing": False}, **_PIPEDREAM
        ),
        "paci": _method("pipedream:paci", replicas="none"),
        "2bw": _method("two_bw:two_bw"),
        "interleaved": _method("looped:interleaved", **_LOOPED),
        "gis": _method("looped:gis", **_LOOPED),
        "gis-h": _method("looped:gis_h", **_LOOPED),
        "eager": _method("one_f_one_b:eager"),
        "looped-bfs": _method("looped:looped_bfs", **_LOOPED),
        "hanayo": _method("looped:hanayo", **_LOOPED),
        "zb-h1": _method("one_f_one_b:zb_h1"),
        "zb-h2": _method("one_f_one_b:zb_h2"),
        "interleaved-zero-bubble": _method("looped:interleaved_zero_bubble", **_LOOPED),
        "zb-v": _method("v_shaped:zb_v", **_V),
        "v-half": _method("v_shaped:v_half", **_V),
        "v-min": _method("v_shaped:v_min", **_V),
        "chimera": _method("two_directions:chimera"),
        "dualpipe": _method("two_directions:dualpipe"),
        "dualpipe-v": _method("two_directions:dualpipe_v", **_V),
    },
)
"""The methods that can be asked for by name, in the order of docs/methods.md."""

_CHUNKED = {"options": {"chunks": 2}}

TABLES = Names(
    "method",
    {
        **METHODS,
        "seq1f1b": _method("one_f_one_b:seq1f1b", **_CHUNKED),
        "terapipe": _method("one_f_one_b:terapipe", **_CHUNKED),
        "bpipe": _method("offloading:bpipe"),
        "pipe-offload": _method("offloading:pipe_offload", **_LOOPED),
        "sharded-bfs": _method("weights:sharded_bfs", **_LOOPED),
        "pipefisher": _method("bubbles:pipefisher", ops=("CURVATURE", "INVERSION")),
        "weipipe": _method("weights:weipipe"),
    },
)
"""Likewise, with those that have sequence chunks or other ops than passes and updates: all can be
drawn, proved and simulated."""


def _cluster(function: str, *first: str) -> NamedPlace:
    return NamedPlace(f"pipekit.clusters.papers:{function}", first=first)


CLUSTERS = Names(
    "cluster",
    {
        "pipedream-a": _cluster("pipedream_a"),
        "pipedream-b": _cluster("pipedream_b"),
        "figure1-k80": _cluster("pipedream_figure1", "K80"),
        "figure1-titan-x": _cluster("pipedream_figure1", "Titan X"),
        "figure1-v100": _cluster("pipedream_figure1", "V100"),
        "gpipe-tpu-v2": _cluster("gpipe_tpu_v2"),
        "torchgpipe-p40": _cluster("torchgpipe_p40"),
        "2bw-v100": NamedPlace("pipekit.clusters.papers:two_bw_workers"),
        "local": NamedPlace("pipekit.clusters.local:local"),
    },
)
"""The clusters that the command line knows."""

MITIGATIONS = Names(
    "mitigation",
    {
        "spectrain": NamedPlace("pipekit.staleness.prediction:SpecTrain"),
        "pipeoptim": NamedPlace("pipekit.staleness.prediction:PipeOptim"),
        "pipemare": NamedPlace("pipekit.staleness.prediction:PipeMare"),
        "gap-aware": NamedPlace("pipekit.staleness.stale_gradients:GapAware"),
        "error-feedback": NamedPlace("pipekit.staleness.stale_gradients:ErrorFeedback"),
        "ahead": NamedPlace("pipekit.staleness.prediction:Ahead"),
    },
)
"""What is done about stale weights."""
