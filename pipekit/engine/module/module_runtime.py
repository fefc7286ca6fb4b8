"""What all minibatches of a :class:`pipekit.PipelinedModule` have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from pipekit.devices import Clock
from pipekit.engine.options import Watch
from pipekit.engine.transports.threads import ThreadWorker
from pipekit.engine.transports.worker_threads import WorkerThreads


@dataclass(frozen=True)
class ModuleRuntime:
    """Where minibatches go, and how they are watched.

    Attributes:
        modules: each stage's layers.
        clocks: of each stage's device.
        workers: where each stage computes, and by what its tensors travel.
        watch: what is recorded, and who watches the stages' workers.
        timeout: seconds without progress after which a forward or backward fails, or None.
        at_work: stages with a worker in them.  One that a failed pass has left behind, because a
            layer does not return, still has the weights of its minibatch in the stage.
        threads: in which the stages compute.
    """

    modules: Sequence[nn.Sequential]
    clocks: Sequence[Clock]
    workers: Sequence[ThreadWorker]
    watch: Watch
    timeout: float | None
    at_work: set[int] = field(default_factory=set)
    threads: WorkerThreads = field(default_factory=WorkerThreads)
