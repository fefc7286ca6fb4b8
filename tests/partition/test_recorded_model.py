"""What is recorded of a module: layers, what crosses between them, and whose tensors they hold."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.partition.recording.modules import find_blocks
from pipekit.partition.recording.record import record
from pipekit.partition.recording.stage import called
from pipekit.partition.stages import stages
from pipekit.partition.verify import verify
from tests.partition.networks import (
    InPlace,
    Net,
    Tied,
    Twice,
    UNet,
    in_turn,
    require_as_in_a_plain_loop,
)


def modules_of(model: nn.Module, batch: Any) -> list[tuple[str, ...]]:
    return [called(layer) for layer in stages(model, batch)]  # type: ignore[arg-type]


def test_blocks_are_the_outermost_repeated_modules() -> None:
    models = pytest.importorskip("torchvision").models
    resnet = models.resnet18(num_classes=2)
    google = models.googlenet(num_classes=2, init_weights=False)
    regnet = models.regnet_y_400mf(num_classes=2)
    assert find_blocks(resnet) == [f"layer{n}.{m}" for n in (1, 2, 3, 4) for m in (0, 1)]
    assert "inception3a" in find_blocks(google)
    assert not [name for name in find_blocks(google) if name.startswith("inception3a.")]
    assert find_blocks(regnet)[:2] == ["trunk_output.block1", "trunk_output.block2.block2-0"]
    assert find_blocks(nn.Linear(2, 2)) == []


def test_a_layer_is_a_modules_call_and_operations_around_it() -> None:
    assert modules_of(UNet(), torch.randn(2, 1, 16, 16)) == [
        ("down.0",), ("down.1",), ("down.2",), ("up.0",), ("up.1",), ("last",),
    ]  # fmt: skip


def test_what_is_used_later_crosses_every_cut_until_then() -> None:
    recorded = record(UNet(), torch.randn(2, 1, 16, 16))[0]
    crossing = [[c.shape for c in recorded.crossing(layer)] for layer in range(1, len(recorded))]
    image, second = (2, 1, 16, 16), (2, 8, 8, 8)
    assert crossing[0] == [image, (2, 4, 8, 8)]  # pooled: fewer bytes than the block gives
    assert crossing[1] == [image, second]  # to be pooled behind the cut
    assert crossing[4] == [image, (2, 4, 8, 8)]
    assert [c.requires_grad for c in recorded.crossing(1)] == [True, True]
    assert recorded.crossing(1)[0].nbytes == 2 * 16 * 16 * 4
    assert recorded.crossing(1)[0].source == "the batch"


def test_no_cut_parts_what_is_made_from_its_edit() -> None:
    assert modules_of(InPlace(), torch.randn(6, 16)) == [
        ("blocks.0",), ("blocks.1", "act"), ("blocks.2",), ("blocks.3", "act"),
        ("blocks.4",), ("head",),
    ]  # fmt: skip


def test_a_module_with_buffers_that_is_called_twice_stays_in_one_layer() -> None:
    def forward(model: Any, x: Tensor) -> Any:
        first, second, third, fourth = model.blocks
        x = model.norm(second(model.norm(first(x))))
        return fourth(third(x))

    model = Net(forward, [nn.Linear(4, 4) for _ in range(4)], norm=nn.BatchNorm1d(4))
    assert modules_of(model, torch.randn(6, 4)) == [
        ("blocks.0",), ("norm", "blocks.1"), ("blocks.2",), ("blocks.3",),
    ]  # fmt: skip


class Masked(nn.Module):
    """Gives all its blocks one buffer; with ``edits``, it changes that first."""

    mask: Tensor

    def __init__(self, edits: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(3))
        self.register_buffer("mask", torch.linspace(0, 1, 4))
        self.edits = edits

    def forward(self, x: Tensor) -> Tensor:
        if self.edits:
            self.mask.mul_(0.5)
        for block in self.blocks:
            x = block(x, self.mask.expand_as(x)) * self.mask
        return x


@pytest.mark.parametrize(("edits", "count"), [(False, 3), (True, 1)])
def test_a_buffer_that_all_blocks_are_given_is_carried_unless_it_is_edited(
    edits: bool, count: int
) -> None:
    layers = stages(Masked(edits), torch.randn(6, 4))
    assert len(layers) == count
    names = [name for layer in layers for name, _ in layer.named_buffers()]
    assert names == ["mask"]
    assert layers.table is not None
    assert all("mask, " in each for each in layers.table["crosses behind"][:-1])


def test_a_buffer_that_a_block_may_edit_stays_with_all_that_read_it() -> None:
    """Behind a cut it would be read while the block edits it for the next microbatch."""

    def forward(model: Any, x: Tensor) -> Any:
        norm, second, third = model.blocks
        return third(second(norm(x)) * norm.running_mean)

    model = Net(forward, [nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)])
    assert modules_of(model, torch.randn(6, 4)) == [("blocks.0", "blocks.1"), ("blocks.2",)]


def test_a_model_with_a_carried_buffer_trains_as_in_a_plain_loop() -> None:
    x = torch.linspace(-1, 1, 24).view(6, 4)
    model = Masked(edits=False)
    layers, batches = stages(copy.deepcopy(model), x), [(x, x.flip(0))] * 3
    flush = schedules.flush(3, 1)
    require_as_in_a_plain_loop(layers, model, batches, flush, transport="distributed")


def test_stages_hold_the_models_own_tensors_under_its_names() -> None:
    model = Tied()
    made = record(model, torch.randint(50, (4, 7)))[0].stages()
    assert {name for stage in made for name in stage.state_dict()} == set(model.state_dict())
    assert "embedding.weight" in made[0].state_dict()
    assert "embedding.weight" in made[-1].state_dict()
    for stage in made:
        for name, parameter in stage.named_parameters():
            assert parameter is model.get_parameter(name)
    assert any("position" in dict(stage.named_buffers()) for stage in made)


def test_weights_that_no_forward_reads_stay_part_of_the_model() -> None:
    model = Net(in_turn, unread=nn.Linear(4, 4))
    model.register_buffer("also_unread", torch.ones(2))
    assert stages(model, torch.randn(4, 4)).state_dict().keys() == model.state_dict().keys()


def test_layers_load_what_the_model_saved() -> None:
    layers, other = stages(Tied(), torch.randint(50, (4, 7))), Tied()
    assert not any(layers.load_state_dict(other.state_dict()))
    missing, unexpected = layers.load_state_dict({"more": torch.ones(1)}, strict=False)
    assert (missing, unexpected) == (sorted(layers.state_dict()), ["more"])
    assert all(torch.equal(t, other.state_dict()[n]) for n, t in layers.state_dict().items())
    with pytest.raises(ValueError, match="first in 'scale'"):
        layers.load_state_dict({k: t for k, t in other.state_dict().items() if k != "scale"})


def test_stages_can_be_copied_and_sent() -> None:
    model, x = UNet(), torch.randn(3, 1, 16, 16)
    layers = stages(model, x)
    for twin in (copy.deepcopy(layers), pickle.loads(pickle.dumps(layers[:6]))):
        assert torch.equal(twin(x)["logits"], model(x)["logits"])
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


def test_the_model_is_left_as_it_was() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(3)]
    model = Net(in_turn, blocks)
    model.eval()
    model.blocks[1].train()
    before = copy.deepcopy(model.state_dict())
    modes = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    stages(model, torch.linspace(-1, 1, 24).view(6, 4))
    assert torch.equal(torch.rand(1), drawn)
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.filterwarnings("ignore:blocks.1 has forward hooks outside")
def test_hooks_of_the_users_run_as_ever() -> None:
    model = Twice()
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 2)
    x = torch.randn(5, 16)
    assert torch.equal(stages(model, x)(x), model(x))


def test_training_and_evaluation_may_differ() -> None:
    def forward(model: Any, x: Tensor) -> Any:
        first, second, third = model.blocks
        y = second(first(x))
        extra = model.only_training(y) if model.training else None
        x = third(y)
        return (x, extra) if model.training else x * 0.5

    model, x = Net(forward, only_training=nn.Linear(4, 2)), torch.randn(5, 4)
    layers = stages(model, x)
    assert torch.equal(layers(x)[1], model(x)[1])
    model.eval()
    layers.eval()
    assert torch.equal(layers(x), model(x))


def test_what_stays_in_evaluation_mode_around_blocks_is_verified_in_it() -> None:
    part = Net(lambda model, x: F.dropout(in_turn(model, x), 0.5, model.training)).eval()
    model, x = Net(lambda model, x: model.part(in_turn(model, x)), part=part), torch.randn(5, 4)
    assert torch.equal(stages(model, x)(x), model(x))


def test_no_gradients_flow_where_the_model_has_none() -> None:
    def forward(model: Any, x: Tensor) -> Any:
        first, second, third = model.blocks
        with torch.no_grad():
            y = first(x) * 2
        return second(x) * y + third(x).detach()

    model = Net(forward)
    model.blocks[2].requires_grad_(False)
    recorded = record(model, torch.randn(5, 4))[0]
    verify(recorded)
    assert [c.requires_grad for c in recorded.crossing(1)] == [True, False]


def test_verifying_finds_a_layer_that_does_something_else() -> None:
    model, x = Twice(), torch.randn(5, 16)
    recorded = record(model, x)[0]
    model.head.register_forward_hook(lambda module, args, output: output * 1.0)
    verify(recorded)
    model.forward = lambda x: x * 2  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="tensor 0 of the output"):
        verify(recorded)


def test_a_table_says_what_there_is() -> None:
    layers = pk.stages(Tied(), torch.randint(50, (4, 7)))
    shown = str(layers)
    assert "5 layers" in shown
    assert "blocks.3" in shown
    assert "crosses behind" in shown
    assert layers.table is not None
    assert layers.table["parameters"].tolist()[0] == 800
    layers = stages(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), torch.ones(3, 4)
    )
    assert layers.table is not None
    assert list(layers.table["random"]) == ["", "yes", ""]


def test_no_grad_and_autocast_between_blocks_are_kept() -> None:
    def forward(model: Any, x: Tensor) -> Any:
        first, second, third = model.blocks
        with torch.no_grad():
            scale = first(x).abs() + 1
        y = second(x) * scale
        with torch.autocast("cpu", enabled=False):
            y = third(y.float()) @ y.float().mT
        with torch.autocast("cpu", torch.bfloat16):
            return y @ y

    model, x = Net(forward), torch.linspace(-1, 1, 24).view(6, 4)
    layers = stages(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert layers(x).dtype == model(x).dtype
        assert torch.equal(layers(x), model(x))
