"""What cannot be recorded is refused with a sentence that names the place and the remedy."""

import copy
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from pipekit import Execution, Pipeline, schedules
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.stages import stages
from tests.partition.networks import Net, in_turn, require_as_in_a_plain_loop

X = torch.linspace(-1, 1, 24).view(6, 4)


class Between(Net):
    """Three blocks, and ``function(self, x)`` before the last one."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__(function)
        self.log: list[int] = []
        self.outer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        first, second, last = self.blocks
        return last(self.function(self, second(first(x))))


def branches(model: Any, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def reads(model: Any, x: Tensor) -> Tensor:
    return x * x.mean().item()


def selects(model: Any, x: Tensor) -> Tensor:
    return x + x[x > 0].sum()


def counts_rows_in_floats(model: Any, x: Tensor) -> Tensor:
    return x * (1 / len(x))


def takes_half(model: Any, x: Tensor) -> Tensor:
    return torch.cat([x[: len(x) // 2] * 2, x[len(x) // 2 :]])


def remembers(model: Any, x: Tensor) -> Tensor:
    model.last = x.mean()
    return x


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


def custom(model: Any, x: Tensor) -> Tensor:
    return _Doubled.apply(x) + 1  # type: ignore[no-any-return]


def checkpoints(model: Any, x: Tensor) -> Tensor:
    return checkpoint(model.blocks[1], x, use_reentrant=True) + 1  # type: ignore[no-any-return]


def hooks(model: Any, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient * 2)
    return x


def hooks_a_module(model: Any, x: Tensor) -> Tensor:
    if not model.outer._backward_hooks:
        model.outer.register_full_backward_hook(lambda module, given, got: None)
    y: Tensor = model.outer(x) + x
    return y


def draws_in_python(model: Any, x: Tensor) -> Tensor:
    return x if random.random() < 2 else -x


def draws_by_numpy(model: Any, x: Tensor) -> Tensor:
    return x * float(np.random.random() < 2)


def logs(model: Any, x: Tensor) -> Tensor:
    model.log.append(len(model.log))
    return x


def edits_an_attribute(model: Any, x: Tensor) -> Tensor:
    if not hasattr(model.function, "table"):
        model.function.table = torch.zeros(4)
    model.function.table.add_(1)
    y: Tensor = x + model.function.table
    return y


def runs_without_autograd(model: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model.blocks[1](x)  # type: ignore[no-any-return]


SCALE = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (runs_without_autograd, r"refusals.py:\d+ makes .* in torch.inference_mode.*no_grad"),
        (lambda model, x: x * SCALE, r"test_record_refusals.py:\d+ uses .* an nn.Parameter"),
        (branches, r"test_record_refusals.py:\d+ reads numbers .*__bool__.*freeze=True"),
        (reads, r"test_record_refusals.py:\d+ reads numbers .*\(item\).*blocks="),
        (selects, r"__getitem__ at test_record_refusals.py:\d+ gives a tensor whose size depends"),
        (
            counts_rows_in_floats,
            r"mul at test_record_refusals.py:\d+ is given 0.16.* with 6 rows .*x.shape",
        ),
        (takes_half, r"not the unsplit one in training mode, with 8 rows.*blocks="),
        (remembers, r"the forward of Between changes 'last'.*buffer"),
        (logs, r"the forward of Between changes 'log'.*buffer"),
        (custom, r"custom autograd function must run within a module"),
        (checkpoints, r"use_reentrant=False"),
        (lambda _, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), "calls .*torch.cond"),
        (lambda _, x: torch.vmap(lambda row: row * 2)(x), r"refusals.py:\d+ runs .* torch.func"),
        (lambda model, x: x.to_sparse().to_dense(), r"of torch.sparse_coo .*: use x.to_dense"),
        (hooks, r"register_hook at test_record_refusals.py:\d+"),
        (
            hooks_a_module,
            r"a module with a full backward hook .*on modules within a block.*blocks=",
        ),
        (draws_in_python, r"draws from Python's random.*torch.rand.*within a block"),
        (draws_by_numpy, r"draws from NumPy's generator"),
        (edits_an_attribute, r"test_record_refusals.py:\d+ changes a tensor in place .*buffer"),
    ],
)
def test_the_sentence_names_the_line_and_the_remedy(
    function: Callable[[Any, Tensor], Any], sentence: str
) -> None:
    with pytest.raises(NotRecordable, match=sentence):
        stages(Between(function), X)


def test_a_compiled_script_as_a_block_is_refused() -> None:
    model = Between(lambda model, x: x)
    model.blocks[1] = torch.jit.script(nn.Linear(4, 4))
    with pytest.raises(NotRecordable, match=r"blocks\.1 is a compiled script.*module of your own"):
        stages(model, X)


def test_what_is_read_may_be_frozen_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"test_record_refusals.py:\d+: "):
        layers = stages(Between(branches), X, freeze=True)
    assert "held to be as in the example" in str(layers)


def test_what_does_not_depend_on_the_batch_may_be_read() -> None:
    def constant(model: Any, x: Tensor) -> Tensor:
        rates: list[float] = torch.linspace(0, 1, 3).tolist()
        return x * rates[1] if torch.arange(4).sum() > 2 else x

    assert len(stages(Between(constant), X)) == 3


def test_a_part_that_cannot_be_recorded_may_be_a_block() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    def forward(model: Any, x: Tensor) -> Any:
        first, branching = model.blocks
        return branching(first(x)) * 2

    assert len(stages(Net(forward, [nn.Linear(4, 4), Branching()]), X)) == 2


class Again(nn.Linear):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(4, 4)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        run = super().forward
        return x + checkpoint(run, x, use_reentrant=self.reentrant)


def checkpointed(first: nn.Module, reentrant: bool) -> Net:
    """Return blocks that run again in their backward, by themselves, behind a first one."""
    return Net(in_turn, [first, *(Again(reentrant) for _ in range(3))])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_in_a_block_is_refused_where_it_loses_gradients() -> None:
    """Its weights get none if its input needs none: as a later stage's, it would."""
    with pytest.raises(
        NotRecordable, match=r"that need no gradient.*blocks.1.*use_reentrant=False"
    ):
        stages(checkpointed(nn.Identity(), reentrant=True), X)
    stages(checkpointed(nn.Identity(), reentrant=False), X)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_in_a_block_trains_as_in_a_plain_loop() -> None:
    model = checkpointed(nn.Embedding(9, 4), reentrant=True)
    judge, words = copy.deepcopy(model), torch.arange(6).view(6, 1)
    how = partial(torch.optim.SGD, lr=0.1)
    pipeline = Pipeline(
        stages(model, words),
        schedules.flush(2, 2),
        optimizer=how,
        loss=nn.MSELoss(),
        execution=Execution(recompute="always"),
    )
    target = torch.randn(6, 1, 4)
    pipeline.train([(words, target)])
    for rows, numbers in zip(words.chunk(2), target.chunk(2), strict=True):
        torch.autograd.backward(nn.functional.mse_loss(judge(rows), numbers) / 2)
    how(judge.parameters()).step()
    trained = pipeline.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in judge.state_dict().items())


def test_a_packed_sequence_is_refused() -> None:
    def forward(model: Any, x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(model.lstm(packed)[0], batch_first=True)[0]

    model = Net(forward, lstm=nn.LSTM(4, 4, batch_first=True))
    with pytest.raises(NotRecordable, match=r"lstm is given .*PackedSequence.*blocks="):
        stages(model, (torch.randn(3, 5, 4), torch.tensor([5, 4, 2])))


@pytest.mark.parametrize("output", [{1, 2}, 3.5, "text"])
def test_an_output_that_is_no_tensor_is_refused(output: Any) -> None:
    with pytest.raises(NotRecordable, match=f"returns a {type(output).__name__}"):
        stages(Net(lambda model, x: (in_turn(model, x), output)), X)


def test_a_cache_is_refused_with_its_remedy() -> None:
    class DynamicCache:
        """As transformers' models return."""

    def forward(model: Any, x: Tensor) -> Any:
        return {"logits": in_turn(model, x), "past_key_values": DynamicCache()}

    with pytest.raises(NotRecordable, match=r"returns a DynamicCache.*config.use_cache = False"):
        stages(Net(forward), X)


def test_positions_as_many_as_rows_are_told_from_a_batch_of_other_rows() -> None:
    class Placed(Net):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            first, second, last = self.blocks
            out: Tensor = last(second(first(x * (places + 1.0))))
            return out

    model, row = Placed(branches), torch.arange(4)
    with pytest.raises(NotRecordable, match=r"fails on 5.*another number of rows"):
        stages(model, (X[:4], row))
    assert stages(model, (X, row))


def test_an_object_made_anew_for_each_forward_cannot_pass_between_blocks() -> None:
    class Context:
        pass

    class Block(nn.Linear):
        def forward(self, x: Tensor, context: Any = None) -> Tensor:
            return super().forward(x)

    def forward(model: Any, x: Tensor) -> Any:
        context = Context()
        for block in model.blocks:
            x = block(x, context)
        return x

    with pytest.raises(NotRecordable, match=r"blocks.0 at test_.*given a Context made anew"):
        stages(Net(forward, [Block(4, 4), Block(4, 4)]), X)


def test_hooks_outside_the_blocks_are_warned_of() -> None:
    """What they do to tensors is recorded; what they keep is not kept again."""
    seen: list[Tensor] = []
    model = Between(lambda model, x: x)

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        seen.append(output)
        return output * 2

    model.register_forward_hook(hook)
    with pytest.warns(UserWarning, match=r"^Between has forward hooks outside the blocks.*blocks="):
        layers = stages(model, X)
    expected, before = model(X), len(seen)
    assert torch.equal(layers(X), expected)
    assert len(seen) == before


SO_FAR = 0


class CountsGlobally(Between):
    """Counts its forwards in a global variable."""

    def forward(self, x: Tensor) -> Any:
        global SO_FAR
        SO_FAR += 1
        return super().forward(x)


def test_variables_of_files_are_state() -> None:
    with pytest.raises(NotRecordable, match="the forward of CountsGlobally changes 'SO_FAR'"):
        stages(CountsGlobally(lambda model, x: x), X)
    assert SO_FAR == 0


class Counts(nn.Module):
    """Gives another output each time; what it counts with is found if it is a list."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        next_one = len(self.calls) if isinstance(self.calls, list) else next(self.calls)
        if isinstance(self.calls, list):
            self.calls.append(next_one)
        return x * (next_one + 1)


def test_state_that_nobody_can_put_back_is_found_by_verifying() -> None:
    with pytest.raises(NotRecordable, match="two runs of the unsplit model differ"):
        stages(nn.Sequential(nn.Linear(4, 4), Counts(itertools.count())), X)


def test_state_in_a_block_is_put_back_and_warned_of() -> None:
    """Training then is the plain loop's, which has not run yet either."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Counts([]), nn.Linear(4, 4))
    layers = stages(model, X)
    assert model[1].calls == []
    batches = [(X, X + k) for k in range(3)]
    with pytest.warns(UserWarning, match=r"the forward changes .*calls.*each microbatch.*buffer"):
        require_as_in_a_plain_loop(layers, model, batches, schedules.flush(2, 1))


@pytest.mark.parametrize("wish", [["nowhere"], [nn.Conv2d], ["blocks", "blocks.0"]])
def test_wishes_that_nothing_answers_to_are_refused(wish: list[Any]) -> None:
    with pytest.raises(NotRecordable, match="blocks: "):
        stages(Between(lambda model, x: x), X, wish)


class Keeps(Net):
    """A block, or what blocks lie within, with a state that is no tensor."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__(in_turn, blocks)

    def get_extra_state(self) -> Any:
        return {"blocks": len(self.blocks)}

    def set_extra_state(self, state: Any) -> None: ...


@pytest.mark.parametrize("outside", ["body.", ""])
def test_extra_state_outside_blocks_is_told_how_it_gets_into_one(outside: str) -> None:
    model: nn.Module = Keeps([nn.Linear(4, 4) for _ in range(3)])
    if outside:
        model = nn.Sequential(OrderedDict(body=model))
    message = rf"Keeps has extra state .*'{outside}_extra_state', .*blocks=\[\.\.\.\], or let"
    with pytest.raises(NotRecordable, match=message):
        stages(model, X, blocks=[nn.Linear])


def test_extra_state_within_blocks_is_the_stages_own() -> None:
    model = nn.Sequential(*(Keeps([nn.Linear(4, 4)]) for _ in range(2)))
    layers = stages(model, X, blocks=[Keeps])
    assert len(layers) == 2
    assert layers.state_dict().keys() == model.state_dict().keys()
