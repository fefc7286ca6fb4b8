"""Our schedules in torch's own runtime, over gloo: the gradients of the unsplit model, to the bit."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.schedules import Schedule
from tests.engine.gloo import over_gloo

TABLES: dict[str, Schedule] = {
    "GPipe": schedules.gpipe(2, 4),
    "Flush": schedules.flush(2, 4),
    "eager 1F1B": schedules.eager(2, 4),
    "ZB-H1": schedules.zb_h1(2, 4),
    "ZB-H2": schedules.zb_h2(2, 4),
    "interleaved": schedules.interleaved(4, 4, workers=2),
    "interleaved zero bubble": schedules.interleaved_zero_bubble(4, 4, workers=2),
    "looped breadth-first": schedules.looped_bfs(4, 4, workers=2),
    "Hanayo, 2 waves": schedules.hanayo(8, 4, workers=2),
    "ZB-V": schedules.zb_v(4, 4),
    "V-Half": schedules.v_half(4, 4),
    "V-Min": schedules.v_min(4, 4),
    "DualPipeV": schedules.dualpipe_v(4, 4),
}
if torch.__version__ < "2.14":  # seen with 2.11: workers send to themselves, which gloo refuses
    TABLES = {
        name: each
        for name, each in TABLES.items()
        if all(one != other for one, other in pairwise(each.stage_workers))
    }


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(6, 6), nn.Tanh())))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 6, generator=generator)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def by_torch() -> dict[str, dict[str, Tensor]]:
    """The gradients of this rank's stages, by each schedule."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name, schedule in TABLES.items():
        model = network()
        (x, y), rank = batch(), dist.get_rank()
        count = len(model) // schedule.stages
        runtime = pk.torch_runtime(schedule, model, [count] * schedule.stages, nn.MSELoss())
        first, last = schedule.stage_workers[0], schedule.stage_workers[-1]
        inputs = (x,) if rank in first else ()
        runtime.step(*inputs, target=y if rank in last else None)
        found[name] = gradients(model)
    return found


@pytest.fixture(scope="module")
def ranks() -> Any:
    return over_gloo(by_torch, 2)


@pytest.fixture(scope="module")
def unsplit() -> dict[str, Tensor]:
    """The sum of the microbatches' gradients, one after the other, over their number, 4."""
    model = network()
    for x, y in zip(*(part.tensor_split(4) for part in batch()), strict=True):
        nn.MSELoss()(model(x), y).backward()
    return {name: gradient / 4 for name, gradient in gradients(model).items()}


@pytest.mark.parametrize("name", TABLES)
def test_the_gradients_are_the_unsplit_models(
    name: str, ranks: Any, unsplit: dict[str, Tensor]
) -> None:
    found = {key: value for rank in ranks for key, value in rank[name].items()}
    assert found.keys() == unsplit.keys()
    assert all(torch.equal(found[key], unsplit[key]) for key in unsplit)


@pytest.mark.skipif("ZB-V" not in TABLES, reason="this torch cannot run it over gloo")
def test_each_rank_has_the_gradients_of_its_own_stages(ranks: Any) -> None:
    assert sorted(ranks[0]["ZB-V"]) == ["0.bias", "0.weight", "6.bias", "6.weight"]
    assert sorted(ranks[1]["ZB-V"]) == ["2.bias", "2.weight", "4.bias", "4.weight"]


def one_rank() -> str:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        pk.torch_runtime(schedules.flush(2, 4).take(1), network(), [4, 4], nn.MSELoss())
    except schedules.ScheduleError as error:
        return str(error)
    return "accepted"


def test_there_is_one_process_a_worker() -> None:
    (message,) = over_gloo(one_rank, 1)
    assert "2 workers and the process group 1 ranks: start one process for each" in message
