"""The module and its arguments."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn

import pipekit as pk
from tests.people.torchgpipe.gpipe import assert_as_plain, gpipe, linears


def test_it_has_the_parameters_of_the_layers() -> None:
    model = linears(1)
    assert [*gpipe(model, [1]).parameters()] == [*model.parameters()]


def test_its_arguments_are_attributes() -> None:
    module = gpipe(linears(1), (1,), chunks=42, checkpoint="always")
    assert (module.balance, module.chunks, module.checkpoint) == ([1], 42, "always")
    assert module.devices == [torch.device("cpu")]


@pytest.mark.parametrize("split", [[2], [1, 1]], ids=str)
def test_it_is_indexed_as_a_sequence(split: list[int]) -> None:
    a, b = model = linears()
    module = gpipe(model, split)
    assert len(module) == 2
    assert [*module] == [a, b]
    assert (module[0], module[1], module[-1], module[-2]) == (a, b, b, a)
    with pytest.raises(IndexError):
        module[2]


@pytest.mark.parametrize("split", [[1], [3], [0, 2], [-1, 3]], ids=str)
def test_a_balance_that_does_not_fit_is_refused(split: list[int]) -> None:
    with pytest.raises(ValueError, match="balance"):
        gpipe(linears(), split)


@pytest.mark.parametrize("chunks", [0, -1])
def test_chunks_are_one_or_more(chunks: int) -> None:
    with pytest.raises(ValueError, match="chunks must be a whole number from 1"):
        gpipe(linears(1), [1], chunks=chunks)


def test_an_unknown_way_to_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint must be one of"):
        gpipe(linears(1), [1], checkpoint="sometimes")


def test_other_modules_than_sequences_are_refused() -> None:
    with pytest.raises(TypeError, match=r"pipekit\.stages"):
        pk.PipelinedModule(nn.Module(), [1], chunks=1)  # type: ignore[arg-type]


MOVES: dict[str, Callable[[nn.Module], object]] = {
    "cuda()": lambda module: module.cuda(),
    "cpu()": lambda module: module.cpu(),
    "to(device)": lambda module: module.to(torch.device("cuda")),
    "to('cuda')": lambda module: module.to("cuda"),
    "to(device=)": lambda module: module.to(device="cuda:0"),
    "to(tensor)": lambda module: module.to(torch.rand(1)),
    "to(tensor=)": lambda module: module.to(tensor=torch.rand(1)),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_it_cannot_be_moved(move: Callable[[nn.Module], object]) -> None:
    with pytest.raises(TypeError, match=r"pass devices=\[\.\.\.\]"):
        move(gpipe(linears(), [1, 1]))


def test_it_can_be_converted() -> None:
    module = gpipe(linears(), [1, 1])
    module.half()
    module.to(torch.double)
    module.to(dtype=torch.float)
    assert {p.dtype for p in module.parameters()} == {torch.float}


# --- differs


def test_chunks_that_are_no_whole_number_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        gpipe(linears(1), [1], chunks=42.0)


@pytest.mark.parametrize("count", [1, 5])
def test_devices_are_as_many_as_stages(count: int) -> None:
    with pytest.raises(ValueError, match="name one for each"):
        gpipe(linears(4), [1, 1, 1, 1], devices=["cpu"] * count)


def test_names_are_those_of_the_unsplit_sequence() -> None:
    named = nn.Sequential(OrderedDict(a=nn.Linear(1, 1), b=nn.Linear(1, 1)))
    module = pk.PipelinedModule(named, [1, 1], chunks=1)
    assert [*module.state_dict()] == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert module.a is named.a


def test_a_sequence_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="no layers"):
        gpipe([], [])


def test_a_balance_is_asked_for() -> None:
    with pytest.raises(TypeError, match="balance"):
        pk.PipelinedModule(linears(), chunks=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential], ids=["layer", "weights"])
def test_a_layer_that_is_there_twice_trains(wrap: Callable[[nn.Module], nn.Module]) -> None:
    conv = nn.Conv2d(3, 3, 1)
    assert_as_plain(nn.Sequential(wrap(conv), wrap(conv)), [1, 1], torch.rand(4, 3, 2, 2))
