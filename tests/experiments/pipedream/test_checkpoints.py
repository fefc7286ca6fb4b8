from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.pipedream import checkpoints
from pipekit import Pipeline, Watch, schedules
from pipekit.engine.checkpoints import files
from tests.engine.examples import data, mixed


def build(transport: str) -> Pipeline:
    return Pipeline(
        mixed(),
        schedules.pipedream(2),
        balance=[4, 4],
        optimizer=partial(torch.optim.Adam, lr=0.01),
        loss=nn.MSELoss(),
        transport=transport,
    )


def test_checkpoints_send_nothing_and_every_stage_writes_a_file_an_epoch(tmp_path: Path) -> None:
    assert checkpoints.coordination(build, [data(4), data(3)], tmp_path) == (0, 1)


def test_a_message_or_a_missing_file_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Pipeline.train

    def asking(pipeline: Pipeline, batches: Any, *, watch: Watch, **others: Any) -> Any:
        if others["checkpoints"]:  # has everybody come this far?
            for worker in range(pipeline.workers):
                observer: Any = watch.observers[0]
                observer.values_summed(worker, 1, torch.zeros(1))
        return train(pipeline, batches, watch=watch, **others)

    monkeypatch.setattr(Pipeline, "train", asking)
    epochs = [data(4), data(3), data(2)]
    assert checkpoints.coordination(build, epochs, tmp_path) == (6, -1)  # two of three stay


@pytest.mark.long
def test_a_restart_goes_on_from_the_last_epoch_that_all_stages_have_written(
    tmp_path: Path,
) -> None:
    came = checkpoints.restart(build, [data(4), data(4), data(40)], 1, tmp_path)
    assert came == checkpoints.Restart(resumed=2, before=1, differences=[])


def test_without_a_kill_there_is_nothing_to_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "kill", lambda worker: None)
    with pytest.raises(RuntimeError, match="use more batches"):
        checkpoints.restart(lambda _: build("threads"), [data(1)] * 3, 1, tmp_path)


def test_any_difference_is_named(tmp_path: Path) -> None:
    weights = {"0.weight": torch.ones(2), "0.bias": torch.ones(1)}
    content = {"stage": 0, "worker": 0, "state": [{"lr": 0.1}], "parameters": weights}

    def homes() -> Iterator[Path]:
        changes: list[dict[str, Any]] = [
            {},
            {"state": [{"lr": 0.2}]},
            {"parameters": {"0.weight": torch.tensor([1, 1.5])}},
        ]
        for number, changed in enumerate(changes):
            files.write(tmp_path / str(number), 1, "a0", 1, content | changed)
            yield tmp_path / str(number) / "batch-00000001-a0"

    first, second, third = homes()
    assert checkpoints.differences(first, first) == []
    assert checkpoints.differences(first, second) == ["/stage 0, worker 0/state/0/lr"]
    assert checkpoints.differences(first, third) == [
        "/stage 0, worker 0/parameters/0.bias",
        "/stage 0, worker 0/parameters/0.weight",
    ]
