"""What ``pipekit train`` trains: a network that comes with data, or the user's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipekit.cli.own import OwnModel, own_batches
from pipekit.metrics import Metric
from pipekit.workloads import WORKLOADS

_Batches = Sequence[Any]


@dataclass(frozen=True)
class Learning:
    """A network, what it learns, and how it is judged.

    Attributes:
        layers: the network.
        loss: of an output and its target.
        batches: of an epoch, from 0.
        test: batches to test on; None if there are none.
        metric: told of them.
        source: where the data is from.
    """

    layers: nn.Sequential
    loss: Callable[[Any, Any], Tensor]
    batches: Callable[[int], _Batches]
    test: _Batches | None
    metric: Metric
    source: str


def known(name: str, text: Path | None, batch_rows: int, seed: int) -> Learning:
    """Return a network that comes with data.

    Args:
        name: of :data:`pipekit.workloads.WORKLOADS`.
        text: a file to learn in place of its own data.
        batch_rows: rows of a batch.
        seed: of the shuffling.
    """
    workload = WORKLOADS[name]
    layers = workload.build()
    data = workload.data() if text is None or workload.text is None else workload.text(text)
    return Learning(
        layers,
        workload.loss,
        lambda epoch: data.batches(batch_rows, seed, epoch),
        data.test_batches(batch_rows),
        workload.metric,
        data.source,
    )


def own(
    model: str, data: str | None, test: str | None, loss: str | None, steps: int | None
) -> Learning:
    """Return a network of the user's, each part named as ``package.module:name``.

    Args:
        model: a function that returns a module, or (module, example).
        data: batches to learn, read again for every epoch.
        test: batches to test on, or None.
        loss: ``loss(output, target)``; of batches that are dicts, ``loss(output, batch)``; None:
            :func:`pipekit.losses.losses.default_loss`.
        steps: batches of an epoch; None: all.

    Raises:
        ValueError: a name leads nowhere, or there is no data.
    """
    if data is None:
        raise ValueError(
            f"what does {model} learn? Name --data package.module:batches, a function that returns "
            f"pairs (input, target), whole batches, or dicts"
        )
    found = OwnModel(model, data)
    judge = found.loss(loss)
    return Learning(
        found.build(),
        judge,
        lambda _: own_batches(data, steps),
        None if test is None else own_batches(test),
        Metric("loss", ".4f", judge),
        data,
    )
