"""Skip connections declared by layers."""

import threading
import weakref
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pipekit import models, oracle
from pipekit.layers.skips import Skip, Skippable, between, carrying, inlined, links, require_matched
from pipekit.partition.probe import probe


class Stash(Skippable):
    stashes = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        self.stash("skip", x)
        return 2 * x


class Pop(Skippable):
    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pop("skip")


class Fail(nn.Module):
    fails = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("this layer fails")
        return x


ONE = torch.ones(1)


def nested() -> nn.Sequential:
    """x to 7 x: 4 x through all, 2 x from within, 1 x from without."""
    return nn.Sequential(
        Stash().isolate("outer"),
        Stash().isolate("inner"),
        Pop().isolate("inner"),
        Pop().isolate("outer"),
    )


# ---- a whole model


def test_a_model_runs_as_any_other() -> None:
    assert nested()(ONE).item() == 7
    assert nested()(3 * ONE).item() == 21


def test_a_failed_pass_leaves_nothing_to_the_next() -> None:
    fail = Fail()
    model = nn.Sequential(Stash(), Stash().isolate("b"), fail, Pop(), Pop().isolate("b"))
    with pytest.raises(RuntimeError, match="this layer fails"):
        model(100 * ONE)
    fail.fails = False
    assert model(ONE).item() == 4 + 1 + 2


def test_the_next_pass_frees_what_a_failed_one_left() -> None:
    model = nn.Sequential(Stash(), Stash().isolate("b"), Fail(), Pop(), Pop().isolate("b"))
    x = torch.ones(1)
    left = weakref.ref(x)
    with pytest.raises(RuntimeError, match="this layer fails"):
        model(x)
    del x
    assert left() is not None
    model[:1](ONE)
    assert left() is None
    Pop()(ONE)


def test_threads_know_nothing_of_one_another() -> None:
    errors: list[str] = []

    def pop() -> None:
        try:
            Pop()(ONE)
        except LookupError as error:
            errors.append(str(error))

    with carrying() as carried:
        Stash()(ONE)
        thread = threading.Thread(target=pop)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert list(carried.outgoing) == ["skip"]


def test_probing_and_the_oracle_need_not_know() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), Stash(), nn.Linear(2, 2), Pop(), nn.Linear(2, 2))
    x, y = torch.rand(4, 2), torch.rand(4, 2)
    assert probe(model, x).edited_inputs == frozenset()
    run = oracle.train(
        model,
        [(x, y), (x, y)],
        method="gpipe",
        balance=[2, 2, 1],
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        loss=nn.MSELoss(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for weights in run.weights:
        assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


# ---- memory


class Forget(nn.Module):
    """Passes on another tensor than it was given."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


class Watch(Skippable):
    """Pops a skip and looks who else has it."""

    pops = ("skip",)

    def forward(self, x: Tensor) -> Tensor:
        popped = weakref.ref(self.pop("skip"))
        assert popped() is None
        return x


def test_a_skip_is_freed_at_its_last_use() -> None:
    assert nn.Sequential(Forget(), Stash(), Watch())(ONE).item() == 2


# ---- parts of a model


def test_what_is_stashed_here_and_popped_there_is_carried() -> None:
    model = nested()
    with carrying() as first:
        x = model[:1](ONE)
    assert {name: t.item() for name, t in first.outgoing.items()} == {"outer/skip": 1}
    with carrying() as second:
        x = model[1:3](x)
    assert not second.outgoing
    with carrying(first.outgoing) as third:
        x = model[3:](x)
    assert x.item() == 4 + 2 + 1
    assert not third.outgoing


def test_inner_contexts_see_nothing_of_outer_ones() -> None:
    with carrying() as outer:
        Stash()(ONE)
        with carrying(), pytest.raises(LookupError):
            Pop()(ONE)
        with pytest.raises(RuntimeError, match="this layer fails"), carrying():  # noqa: PT012
            Stash()(2 * ONE)
            Fail()(ONE)
        assert Pop()(ONE).item() == 2
    assert not outer.outgoing


def test_a_missing_skip_is_told_with_its_namespace() -> None:
    with carrying(), pytest.raises(LookupError, match=r"carrying\(\{'level 3/skip': tensor\}\)"):
        Pop().isolate("level 3")(ONE)


# ---- declarations


class Undeclared(Skippable):
    stashes = ("one",)
    pops = ("two",)


def test_undeclared_names_are_refused() -> None:
    layer = Undeclared()
    with pytest.raises(ValueError, match=r"write stashes = \('one', 'two'\) in class Undeclared"):
        layer.stash("two", ONE)
    with pytest.raises(ValueError, match="Undeclared pops 'one' without declaring it"):
        layer.pop("one")


def test_links_of_a_model() -> None:
    model = nn.Sequential(*nested(), nn.Sequential(nn.ReLU(), Stash()), nn.ReLU(), Pop())
    require_matched(model)
    assert links(model) == [
        Skip("inner/skip", 1, 2),
        Skip("outer/skip", 0, 3),
        Skip("skip", 4, 6),
    ]
    assert links(model[1:4]) == [Skip("inner/skip", 0, 1)]


def test_both_ends_may_lie_in_one_layer() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Sequential(Stash(), Pop()))
    require_matched(model)
    assert links(model) == [Skip("skip", 1, 1)]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [Stash(), nn.ReLU(), Stash(), Pop()],
            r"'skip' is in stashes of both layer 0 \(Stash\) and layer 2 \(Stash\): give each pair",
        ),
        (
            [Stash(), Pop(), Pop()],
            r"'skip' is in pops of both layer 1 \(Pop\) and layer 2 \(Pop\): .* under two names",
        ),
        (
            [Stash().isolate("a"), Pop().isolate("a"), Pop().isolate("b")],
            r"layer 2 \(Pop\) pops 'b/skip', which no layer stashes: let a layer before it",
        ),
        (
            [nn.ReLU(), nn.Sequential(Stash())],
            r"layer 1 \(Sequential\) stashes 'skip', which no layer pops: let a layer behind it",
        ),
        (
            [Pop(), Stash()],
            r"layer 0 \(Pop\) pops 'skip' before layer 1 \(Stash\) stashes it: exchange the two",
        ),
    ],
    ids=["stashed twice", "popped twice", "never stashed", "never popped", "wrong order"],
)
def test_unmatched_skips_are_refused(layers: Sequence[nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        require_matched(layers)


# ---- stages


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_ends_are_where_their_layers_are(balance: list[int], data: st.DataObject) -> None:
    stage_of = [stage for stage, length in enumerate(balance) for _ in range(length)]
    layer = st.integers(0, len(stage_of) - 1)
    ends = data.draw(st.lists(st.tuples(layer, layer).map(sorted), max_size=6))
    skips = [Skip(str(number), *pair) for number, pair in enumerate(ends)]
    assert between(skips, balance) == [
        Skip(name, stage_of[one], stage_of[other])
        for name, one, other in skips
        if stage_of[one] != stage_of[other]
    ]


# ---- riding along


def gradients(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    y = model(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


def test_the_inlined_model_computes_the_same() -> None:
    torch.manual_seed(0)
    net, images = models.unet(1, 2), torch.rand(2, 3, 64, 64)
    for model, x in (net, images), (nested(), ONE):
        for one, other in zip(gradients(model, x), gradients(inlined(model), x), strict=True):
            assert torch.equal(one, other)
