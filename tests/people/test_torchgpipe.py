"""What torchgpipe's tests require of ``GPipe``, of :class:`pipekit.PipelinedModule`.

The behaviours are those that the tests of torchgpipe 0.0.7 check, each said anew; what checks the
parts of its own machinery alone (its queues, streams, phony tensors) is left out.  Where pipekit
differs, the case is in one of the sections "differs", and in docs/from_other_tools.md.
"""

import copy
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipekit as pk
from pipekit.layers.skips import Skippable
from pipekit.planning import balance
from pipekit.profiling import LayerProfile, Profile
from tests.engine.examples import different

MODES = ["never", "always", "except_last"]


pytestmark = pytest.mark.usefixtures("one_thread")


class Calls(nn.Module):
    """Calls a function, which returns the output."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def looks(see: Callable[[Tensor], object]) -> nn.Module:
    """Return a layer that calls a function, and gives its input."""

    def look(x: Tensor) -> Tensor:
        see(x)
        return x

    return Calls(look)


def gpipe(model: Iterable[nn.Module], split: Sequence[int], **how: Any) -> pk.PipelinedModule:
    """Return the module as torchgpipe's tests make it: on the CPU, one microbatch."""
    return pk.PipelinedModule(
        list(model), split, **{"chunks": 1, "devices": how_many(split), **how}
    )


def how_many(split: Sequence[int]) -> list[str]:
    return ["cpu"] * len(split)


def linears(count: int = 2) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(count)))


def assert_as_plain(model: nn.Sequential, split: list[int], x: Tensor, **how: Any) -> None:
    """Require output and gradients of the plain module, up to rounding by microbatches."""
    module, found = gpipe(copy.deepcopy(model), split, **how), []
    for each in module, model:
        given = x.clone().requires_grad_()
        output = each(given)
        output.mean().backward()
        found.append([output, given.grad, *(p.grad for p in each.parameters())])
    torch.testing.assert_close(found[0], found[1])


# --- the module and its arguments


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


# --- the module and its arguments: differs


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


# --- microbatches


@pytest.mark.parametrize(("rows", "parts"), [(7, [2, 2, 2, 1]), (2, [1, 1]), (8, [2, 2, 2, 2])])
def test_rows_need_not_be_a_multiple_of_chunks(rows: int, parts: list[int]) -> None:
    seen: list[int] = []
    module = gpipe([nn.Linear(1, 1), looks(lambda x: seen.append(len(x)))], [2], chunks=4)
    with warnings.catch_warnings(action="error"):
        assert len(module(torch.rand(rows, 1))) == rows
    assert seen[1:] == parts  # the first tries the model


@pytest.mark.parametrize("outputs", [1, 2])
def test_tuples_of_tensors_go_in_and_out(outputs: int) -> None:
    layers = [nn.Linear(1, 1) for _ in range(outputs)]

    class Each(nn.ModuleList):
        def forward(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(layer(x) for layer, x in zip(self, given, strict=True))

    given = tuple(torch.rand(10, 1, requires_grad=True) for _ in range(outputs))
    made = gpipe([Each(layers)], [1], chunks=2)(given)
    assert isinstance(made, tuple)
    assert [len(each) for each in made] == [10] * outputs
    torch.stack(made).mean().backward()
    assert all(x.grad is not None for x in given)


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (lambda _: "hello", torch.rand(1)),
        (lambda x: (x, "hello"), torch.rand(1)),
        (lambda x: x, "hello"),
        (lambda x: x, 42),
        (lambda x: x, (torch.rand(1), "hello")),
    ],
    ids=["output", "one of the outputs", "input", "number", "one of the inputs"],
)
def test_only_tensors_are_passed_on(layer: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(TypeError, match="pass tensors"):
        gpipe([Calls(layer)], [1])(given)


def test_it_takes_one_argument() -> None:
    with pytest.raises(TypeError):
        gpipe(linears(1), [1])(torch.rand(1, 1), torch.rand(1, 1))


def test_a_plain_modules_gradients() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    assert_as_plain(model, [2, 2], torch.rand(8, 1), chunks=4)


def test_each_stage_has_a_thread_of_its_own() -> None:
    seen: list[tuple[int, str]] = []

    def noting(stage: int) -> nn.Module:
        return looks(lambda _: seen.append((stage, threading.current_thread().name)))

    gpipe([noting(0), noting(1)], [1, 1], chunks=2)(torch.rand(2, 1))
    names = [{name for stage, name in seen[2:] if stage == own} for own in range(2)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]
    assert threading.current_thread().name not in names[0] | names[1]


# --- microbatches: differs


@pytest.mark.parametrize(
    "given", [(torch.zeros(2, 1), torch.zeros(4, 2)), torch.tensor(42)], ids=["tuple", "number"]
)
def test_tensors_have_as_many_rows_as_one_another(given: Any) -> None:
    with pytest.raises(ValueError, match="same first dimension"):
        gpipe([nn.Identity()], [1], chunks=2)(given)


# --- checkpoints


def flagged(seen: list[tuple[bool, bool]]) -> nn.Module:
    return looks(lambda _: seen.append((pk.is_checkpointing(), pk.is_recomputing())))


@pytest.mark.parametrize(
    ("mode", "chunks", "count"),
    [
        ("always", 2, 2),
        ("except_last", 2, 1),
        ("never", 2, 0),
        ("always", 1, 1),
        ("except_last", 1, 0),
        ("never", 1, 0),
    ],
)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_which_microbatches_are_checkpointed(
    mode: Any, chunks: int, count: int, training: bool
) -> None:
    seen: list[tuple[bool, bool]] = []
    module = gpipe([nn.Linear(1, 1), flagged(seen)], [2], chunks=chunks, checkpoint=mode)
    module.train(training)
    module(torch.rand(2, 1)).sum().backward()
    count *= training
    once = [(True, False)] * count + [(False, False)] * (chunks - count)
    assert seen[1:] == once + [(False, True)] * count  # the first tries the model


def test_outside_a_pipeline_nothing_is_checkpointed() -> None:
    seen: list[tuple[bool, bool]] = []
    flagged(seen)(torch.rand(1, requires_grad=True)).backward()
    assert seen == [(False, False)]


def test_a_recomputation_precedes_its_backward() -> None:
    seen: list[str] = []

    class Log(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.number = int(x)
            seen.append(f"forward {ctx.number}")
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen.append(f"backward {ctx.number}")
            return gradient

    module = gpipe([Calls(Log.apply)], [1], chunks=2, checkpoint="always")
    x = torch.arange(2.0)[:, None].requires_grad_()
    module(x)
    seen.clear()
    module(x).sum().backward()
    assert seen == ["forward 0", "forward 1", "forward 1", "backward 1", "forward 0", "backward 0"]


def test_weights_get_gradients_if_the_input_needs_none() -> None:
    module = gpipe(linears(1), [1], checkpoint="always")
    module(torch.rand(1, 1)).backward()
    assert all(p.grad is not None for p in module.parameters())


def test_without_gradients_no_graph_is_kept() -> None:
    seen: list[Any] = []
    module = gpipe([nn.Linear(1, 1), looks(lambda x: seen.append(x.grad_fn))], [2], chunks=2)
    with torch.no_grad():
        module(torch.rand(2, 1))
    assert seen == [None] * 3


def test_a_checkpointed_layer_draws_the_same_numbers() -> None:
    found: list[Tensor] = []
    for mode in "always", "never":
        torch.manual_seed(0)
        x = torch.randn(3, 3, requires_grad=True)
        gpipe([nn.Dropout()], [1], checkpoint=mode)(x).norm().backward()
        assert x.grad is not None
        found.append(x.grad)
    assert torch.equal(*found)


def test_stages_that_draw_at_once_draw_the_same_again() -> None:
    def dropouts(x: Tensor) -> Tensor:
        for _ in range(100):
            x = nn.functional.dropout(x, p=0.001)
        return x

    x = torch.rand(10, 10, requires_grad=True)
    module = gpipe([Calls(dropouts), Calls(dropouts)], [1, 1], chunks=10, checkpoint="always")
    y = module(x)
    y.norm().backward()
    assert x.grad is not None
    assert torch.equal(y.bool(), x.grad.bool())


def test_a_function_of_autograd_may_return_its_input() -> None:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    layers = nn.Sequential(Calls(Identity.apply), Calls(Identity.apply))
    assert_as_plain(layers, [1, 1], torch.rand(42), checkpoint="always")


# --- checkpoints: differs, as edits in place are right


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_may_edit_its_input(mode: Any) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(inplace=True))
    assert_as_plain(model, [1, 1], torch.rand(4, 1), checkpoint=mode, chunks=2)


@pytest.mark.parametrize("mode", MODES)
def test_an_edit_is_made_once_for_a_recomputation(mode: Any) -> None:
    foo, bar = torch.tensor([1.0], requires_grad=True), torch.tensor([1.0])
    gpipe([Calls(lambda pair: pair[0] * pair[1].add_(1))], [1], checkpoint=mode)(
        (foo, bar)
    ).backward()
    assert foo.grad is not None
    assert foo.grad.item() == 2


# --- errors


class Expected(Exception):
    pass


def failing(calls: int) -> nn.Module:
    """Return a layer that fails after some calls, the trial of the model among them."""
    left = [None] * calls

    def fail(x: Tensor) -> Tensor:
        if not left:
            raise Expected
        left.pop()
        return x

    return Calls(fail)


@pytest.mark.parametrize("calls", [0, 1, 2], ids=["trial", "first", "second"])
@pytest.mark.filterwarnings("ignore:the forward changes")
def test_an_error_of_a_layer_is_the_callers(calls: int) -> None:
    module = gpipe([nn.Identity(), nn.Identity(), failing(calls)], [1, 1, 1], chunks=3)
    with pytest.raises(Expected):
        module(torch.rand(3, 1))


def test_stages_before_an_error_stop_early() -> None:
    failed, seen = threading.Event(), list[int]()

    def count(x: Tensor) -> Tensor:
        if len(seen) > 1:  # after the trial, and the microbatch that fails behind
            assert failed.wait(60)
            time.sleep(0.001)  # a second for all
        seen.append(len(x))
        return x

    def fail(x: Tensor) -> Tensor:
        if len(seen) > 1:
            failed.set()
            raise Expected
        return x

    many = 1_000
    module = gpipe([nn.Identity(), Calls(count), Calls(fail)], [1, 1, 1], chunks=many)
    with pytest.raises(Expected):
        module(torch.rand(many, 1))
    assert len(seen) < many


# --- deferred batch norm


def tilted(rows: int = 16) -> Tensor:
    """Return images whose channels and rows have other means and variances."""
    scales = torch.tensor([1.0, 10.0, 100.0])[None, :, None, None]
    return torch.rand(rows, 3, 8, 8) * scales + 2.0 ** torch.arange(rows)[:, None, None, None] / 99


def deferred(layers: list[nn.Module], chunks: int = 4, **how: Any) -> pk.PipelinedModule:
    split = [len(layers)]
    return gpipe(copy.deepcopy(layers), split, chunks=chunks, deferred_batch_norm=True, **how)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("mode", MODES)
def test_running_averages_are_the_whole_batchs(mode: Any, momentum: float | None) -> None:
    norm = nn.BatchNorm2d(3, momentum=momentum)
    module, x = deferred([norm], checkpoint=mode), tilted()
    for _ in range(2):
        module(x).mean().backward()
        norm(x)
    found, wanted = module.state_dict(), nn.Sequential(norm).state_dict()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module.eval()(x), norm.eval()(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("mode", ["never", "always"])
def test_each_microbatch_is_normalized_by_its_own(
    mode: Any, chunks: int, needs_gradient: bool
) -> None:
    norm, x = nn.BatchNorm2d(3), tilted()
    module = deferred([norm], chunks, checkpoint=mode)
    inputs = [x.clone().requires_grad_(needs_gradient) for _ in range(2)]
    one = module(inputs[0])
    other = torch.cat([norm(part) for part in inputs[1].chunk(chunks)])
    torch.testing.assert_close(one, other)
    for output in one, other:
        output.square().mean().backward()
    torch.testing.assert_close(
        [inputs[0].grad, *(p.grad for p in module.parameters())],
        [inputs[1].grad, *(p.grad for p in norm.parameters())],
    )
    assert not any(buffer.requires_grad for buffer in module.buffers())


def test_evaluation_stays_near_that_of_the_whole_batch_while_it_trains() -> None:
    norm = nn.BatchNorm2d(3)
    module = deferred([norm])
    steppers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, norm)]
    for _ in range(5):
        x = tilted()
        for each, stepper in zip((module, norm), steppers, strict=True):
            stepper.zero_grad()
            each.train()(x).sum().backward()
            stepper.step()
        torch.testing.assert_close(module.eval()(x), norm.eval()(x), atol=0.1, rtol=0.01)


def test_other_layers_see_other_statistics_and_so_train_otherwise() -> None:
    layers = [nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)]
    plain, module, x = nn.Sequential(*layers), deferred(layers), tilted()
    outputs = [each(x) for each in (plain, module)]
    assert not torch.allclose(outputs[0], outputs[1])
    averages = [each.get_buffer("1.running_mean") for each in (plain, module)]
    torch.testing.assert_close(averages[0], averages[1])
    for each, output in zip((plain, module), outputs, strict=True):
        output.square().sum().backward()
        torch.optim.SGD(each.parameters(), lr=0.1).step()
        each(x)
    one, other = (each.state_dict() for each in (plain, module))
    for name in "0.weight", "1.running_mean":
        assert not torch.allclose(one[name], other[name])


def test_norms_without_running_averages_stay_as_they_are() -> None:
    norm, x = nn.BatchNorm2d(3, track_running_stats=False), tilted()
    module = deferred([norm], chunks=1)
    assert torch.equal(module(x), norm(x))
    assert [*module.state_dict()] == ["0.weight", "0.bias"]


def test_a_norm_is_converted_once() -> None:
    norm = pk.convert_batch_norm(nn.BatchNorm2d(3))
    assert pk.convert_batch_norm(norm) is norm
    assert isinstance(norm, pk.DeferredBatchNorm)


# --- skips


class Stash(Skippable):
    """Leaves its input, and gives another."""

    stashes = ("skip",)

    def __init__(self, left: Callable[[Tensor], Tensor | None] = lambda x: x) -> None:
        super().__init__()
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", self.left(x))
        return x * 2


class Pop(Skippable):
    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        skip: Tensor | None = self.pop("skip")
        return x if skip is None else x + skip


class PopAndStash(Skippable):
    pops, stashes = ("skip",), ("other",)


class PopOther(Skippable):
    pops = ("other",)


def accepted(*layers: nn.Module) -> pk.PipelinedModule:
    return gpipe(layers, [1] * len(layers))


def test_a_tensor_that_is_stashed_is_popped() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(nn.Sequential(Stash(), Pop())(x), 3 * x)
    assert torch.equal(accepted(Stash(), Pop())(x), 3 * x)


def test_none_may_be_stashed() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(accepted(Stash(lambda _: None), Pop())(x), 2 * x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", [[3], [1, 2], [2, 1], [1, 1, 1]], ids=str)
@pytest.mark.parametrize("without", [[], ["portals"]], ids=["portals", "copies"])
def test_a_skip_goes_past_a_layer(mode: Any, split: list[int], without: list[str]) -> None:
    def conv(end: nn.Module) -> list[nn.Module]:
        return [end, nn.Conv2d(3, 3, 1)]

    model = nn.Sequential(nn.Sequential(*conv(Stash())), nn.Conv2d(3, 3, 1), nn.Sequential(Pop()))
    x = torch.rand(30, 3, 4, 4)
    assert_as_plain(model, split, x, chunks=3, checkpoint=mode, without=without)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("mode", MODES)
def test_no_skip_is_left_behind(mode: Any, training: bool) -> None:
    left: list[weakref.ref[Tensor]] = []

    def keep(x: Tensor) -> Tensor:
        y = x * 1
        left.append(weakref.ref(y))
        return y

    module = gpipe([nn.Linear(1, 1), Stash(keep), Pop()], [2, 1], chunks=2, checkpoint=mode)
    module.train(training)
    with torch.set_grad_enabled(training):
        output = module(torch.rand(10, 1))
    if training:
        output.norm().backward()
    assert len(left) >= 3
    assert [each() for each in left] == [None] * len(left)


def test_skips_match_by_their_names() -> None:
    accepted(Stash(), Pop())
    accepted(Stash(), PopAndStash(), PopOther())
    accepted(*(layer.isolate(name) for name in "ab" for layer in (Stash(), Pop())))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([Stash], "stashes 'skip', which no layer pops"),
        ([Pop], "pops 'skip', which no layer stashes"),
        ([Stash, Stash, Pop], "'skip' is in stashes of both layer 0 .* and layer 1"),
        ([Stash, Pop, Pop], "'skip' is in pops of both layer 1 .* and layer 2"),
        ([Stash, Pop, Stash, Pop], "'skip' is in stashes of both layer 0 .* and layer 2"),
    ],
)
def test_skips_that_do_not_match_are_refused(layers: list[type[nn.Module]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        accepted(*(layer() for layer in layers))


def test_what_a_layer_does_not_declare_it_neither_stashes_nor_pops() -> None:
    for layer, said in (Stash(), "stashes 'skip' without"), (Pop(), "pops 'skip' without"):
        layer.stashes = layer.pops = ()
        with pytest.raises(ValueError, match=said):
            layer(torch.rand(1))


def test_what_nobody_has_stashed_is_not_popped() -> None:
    with pytest.raises(LookupError, match="which nothing has stashed"):
        Pop()(torch.rand(1))


def test_what_a_layer_declares_it_stashes() -> None:
    class Forgets(Stash):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(LookupError, match="skip"):
        accepted(Forgets(), Pop())(torch.rand(4, 1))


def test_namespaces_stay_with_copies() -> None:
    layer = Stash().isolate("a")
    assert copy.deepcopy(layer).full("skip") == layer.full("skip") == "a/skip"
    assert layer.full("skip") != Stash().isolate("b").full("skip")


# --- skips: differs


def test_a_layer_may_have_both_ends_of_a_skip() -> None:
    x = torch.rand(4, 1)
    assert torch.equal(accepted(nn.Sequential(Stash(), Pop()))(x), 3 * x)


# --- balance


@pytest.mark.parametrize(
    ("costs", "stages", "split"), [([1, 2, 3, 4, 5, 6], 2, [4, 2]), ([0, 0], 2, [1, 1])]
)
def test_blocks_are_about_equal(costs: list[float], stages: int, split: list[int]) -> None:
    assert balance(costs, stages, by="block") == balance(costs, stages) == split


@pytest.mark.parametrize(("costs", "stages"), [([42], 0), ([42], -1), ([], 1), ([42], 2)])
def test_there_are_as_many_blocks_as_asked_for(costs: list[float], stages: int) -> None:
    with pytest.raises(ValueError, match="stage"):
        balance(costs, stages, by="block")


def costs(*layers: tuple[float, float, float]) -> Profile:
    """Return a profile of seconds, bytes of weights and bytes of activations."""
    return Profile(
        tuple(
            LayerProfile(str(n), seconds / 2, seconds / 2, 0.0, weights, saved)
            for n, (seconds, weights, saved) in enumerate(layers)
        )
    )


@pytest.mark.parametrize("place", [0, 1, 2], ids=["time", "weights", "activations"])
@pytest.mark.parametrize("up", [True, False])
def test_layers_are_balanced_by_time_or_size(place: int, up: bool) -> None:
    layers = [tuple(float(n) * (place == k) for k in range(3)) for n in range(1, 7)]
    profile = costs(*(layers if up else layers[::-1]))  # type: ignore[arg-type]
    two, of = pk.clusters.flat(2, bandwidth=1e9), "size" if place else "time"
    assert pk.plan(profile, two, "balance", of=of).balance == ([4, 2] if up else [2, 4])


@pytest.mark.filterwarnings("ignore:the layers' times")
def test_profiling_leaves_the_model_as_it_is() -> None:
    trained: list[bool] = []

    class Look(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            trained.append(self.training)
            return super().forward(x)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Look(3))
    model(torch.rand(2, 3, 4, 4)).norm().backward()
    model.eval()
    before, gradient = copy.deepcopy(model.state_dict()), copy.deepcopy(model[0].weight.grad)
    trained.clear()
    pk.profile(model, torch.rand(2, 3, 4, 4), repeats=1, loss=None, others=0)
    assert set(trained) == {True}
    assert not model[1].training
    assert different(model.state_dict(), before) == []
    assert torch.equal(model[0].weight.grad, gradient)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:the layers' times")
def test_layers_with_several_outputs_are_profiled() -> None:
    twin, total = Calls(lambda x: (x, x.detach())), Calls(lambda pair: pair[0] + pair[1])
    layers = nn.Sequential(nn.Linear(1, 1), twin, total)
    assert len(pk.profile(layers, torch.rand(1, 1), repeats=1, loss=None, others=0)) == 3
