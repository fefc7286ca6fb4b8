"""A stage: recomputation, pending passes, and what it leaves behind."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit.engine.execution.passes import PassConfig
from pipekit.engine.execution.pipeline_io import StageGradients, StageIO
from pipekit.engine.execution.stage import Stage, StageConfig
from pipekit.partition.partition import PartitionStage
from pipekit.partition.probe import probe
from pipekit.plans import Recompute
from pipekit.schedules import Op, Step, Task
from tests.engine.examples import (
    OPTIMIZERS,
    SlowBackward,
    Trained,
    by_equations,
    data,
    different,
    mixed,
    pipeline,
    unlike,
)

CPU = torch.device("cpu")
ONES = StageIO(torch.ones(4, 6), {})


def config(layers: nn.Sequential, recompute: Recompute = "never") -> StageConfig:
    tried = probe(layers, torch.randn(4, 6))
    part = PartitionStage(index=1, module=layers, edits_input=0 in tried.edited_inputs)
    passes = PassConfig(part=part, recompute=recompute)
    return StageConfig(passes=passes, optimizer=OPTIMIZERS["adam"])


def ready(layers: nn.Sequential, slots: int = 1) -> Stage:
    stage = config(layers).build(CPU)
    stage.prepare(slots)
    return stage


def of(op: Op, microbatch: int = 0) -> Step:
    """Return a step that reads the first slot, for the first update."""
    return Step(Task(op, 1, microbatch, 0), (), (), 0, 1)


FORWARD, BACKWARD = of(Op.FORWARD), of(Op.BACKWARD)


def passes(stage: Stage, microbatch: int) -> tuple[Tensor, Any]:
    x = torch.ones(4, 6) * (microbatch + 1)
    there, back = of(Op.FORWARD, microbatch), of(Op.BACKWARD, microbatch)
    output = stage.forward(there, StageIO(x, {}), None).main
    gradients = StageGradients({0: torch.ones_like(output)}, {})
    return output, stage.backward(back, gradients).main


# --- Recomputation -------------------------------------------------------------------------------

RECOMPUTATIONS = {"never": 0, "except_last": 3, "always": 4}  # of the four microbatches of a batch


@pytest.mark.parametrize("recompute", RECOMPUTATIONS)
@pytest.mark.parametrize("method", ["flush", "pipedream"])
def test_recomputation_changes_no_bit(method: str, recompute: str) -> None:
    batches = data(3, rows=10)
    truth = by_equations(mixed(), batches, method, [2, 3, 3])
    pipe = pipeline(mixed(), method, [2, 3, 3], recompute=recompute)
    run, state = pipe.train(batches), pipe.state_dict()
    assert unlike(Trained(run.losses, state), truth) == []
    divided = method != "pipedream"
    assert state["1.num_batches_tracked"] == 3 * (4 if divided else 1)
    expected = RECOMPUTATIONS[recompute] if divided else int(recompute == "always")
    assert (run.trace.frame["op"] == "RECOMPUTE").sum() == 3 * 3 * expected


@pytest.mark.parametrize("transport", ["threads", "distributed"])
def test_recomputation_starts_before_the_gradient_arrives(transport: str) -> None:
    """Stage 0 has nothing to do but to wait while stage 1 takes 0.2 s for its first backward."""
    model = nn.Sequential(nn.Linear(6, 6), SlowBackward(), nn.Linear(6, 3))
    run = pipeline(model, "gpipe", [1, 2], m=2, recompute="always", transport=transport).train(
        data(1)
    )
    frame = run.trace.frame.set_index(["stage", "op", "microbatch"])
    gradient_sent = frame.loc[(1, "BACKWARD", 0), "end_s"]
    assert frame.loc[(0, "RECOMPUTE", 0), "start_s"] < gradient_sent - 0.1
    assert frame.loc[(0, "RECOMPUTE", 0), "end_s"] < gradient_sent
    assert frame.loc[(0, "BACKWARD", 0), "start_s"] >= gradient_sent


def test_what_is_recomputed_is_not_kept() -> None:
    """Between forward and backward only the input is alive."""
    kept = {}
    modes: list[Recompute] = ["never", "always"]
    for mode in modes:
        stage = config(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), mode).build(CPU)
        saved: list[Tensor] = []

        def pack(tensor: Tensor, saved: list[Tensor] = saved) -> Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            stage.forward(FORWARD, ONES, None)
        kept[mode] = len(saved)
    assert kept["always"] == 0 < kept["never"]


# --- Passes --------------------------------------------------------------------------------------


def test_a_config_makes_the_stage_again() -> None:
    """With the optimizer's state: the next update is the same."""
    torch.manual_seed(0)
    one = ready(nn.Sequential(nn.Linear(6, 6)), slots=2)
    passes(one, 0)
    one.weights.update(1, one.weights.gradients(1))
    other = one.config.build(CPU)
    other.prepare(1)
    one.prepare(1)
    for stage in (one, other):
        passes(stage, 1)
        stage.weights.update(0, stage.weights.gradients(1))
    assert (
        different(dict(one.weights.newest.state_dict()), dict(other.weights.newest.state_dict()))
        == []
    )
