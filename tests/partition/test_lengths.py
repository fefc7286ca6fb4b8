"""Which lengths of a batch may vary, and what Python computes from them between blocks."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipekit import Pipeline, schedules
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import Size
from pipekit.partition.recording.traced import plain, traced
from pipekit.partition.stages import stages
from tests.partition.networks import Net, UNet, build, tokens
from tests.partition.test_record_refusals import Between, X
from tests.partition.test_recorded_networks import OPTIMIZER, loss, with_lengths
from tests.people.plain import plain_loop


def verified(layers: Any) -> str:
    return str(layers.origin.trial.sizes)


def test_one_record_is_for_training_and_evaluation_of_all_sizes() -> None:
    model = UNet()
    layers = stages(model, torch.randn(3, 1, 16, 16))
    assert verified(layers) == "5 rows of length 25 x 25"
    for training in (True, False):
        model.train(training), layers.train(training)
        for shape in ((5, 1, 16, 16), (2, 1, 24, 40), (1, 1, 32, 16)):
            x = torch.randn(shape)
            assert torch.equal(layers(x)["logits"], model(x)["logits"])


def test_a_network_trains_on_batches_of_many_lengths() -> None:
    model, batch = build("tied")
    judge = copy.deepcopy(model)
    layers = stages(model, batch)
    batches = [
        (with_lengths(batch, length), torch.full((4,), 0.1 * length)) for length in (7, 3, 12, 7)
    ]
    pipeline = Pipeline(layers, schedules.flush(2, 1), optimizer=OPTIMIZER, loss=loss)
    assert pipeline.train(batches).losses == plain_loop(judge, OPTIMIZER, loss, batches)
    trained = pipeline.state_dict()
    assert all(torch.equal(trained[key], tensor) for key, tensor in judge.state_dict().items())


@pytest.mark.parametrize(("name", "lengths"), [("transformer", (6, 4)), ("attention", (6,))])
def test_lengths_of_sources_and_targets_vary_by_themselves(
    name: str, lengths: tuple[int, ...]
) -> None:
    model, batch = build(name)
    layers = stages(model, batch)
    assert verified(layers) == f"6 rows of length {' x '.join(map(str, lengths))}"
    more = batch[0].repeat(1, 2, 1), batch[1][:, :2]
    if name == "transformer":
        assert torch.equal(layers(more), model(*more))


def masked(model: Any, x: Tensor, mask: Tensor) -> Any:
    """Take a square mask with the batch: both sides are as long as the text."""
    for block in model.blocks:
        x = (x @ x.mT + mask) @ block(x)
    return x


def test_both_sides_of_a_square_vary_together() -> None:
    model = Net(masked, width=5)
    layers = stages(model, (torch.randn(3, 8, 5), torch.ones(8, 8).tril()))
    assert verified(layers) == "5 rows of length 7"
    batch = torch.randn(2, 11, 5), torch.ones(11, 11).tril()
    assert torch.equal(layers(batch), model(*batch))


def shares(model: Any, x: Tensor) -> Tensor:
    return x * (1 / x.shape[0])


def halves(model: Any, x: Tensor) -> Tensor:
    half = x.size(0) // 2
    return torch.cat([x[:half] * 2, x[half:]])


def fills_up(model: Any, x: Tensor) -> Tensor:
    missing = -x.size(dim=0) % 4
    return nn.functional.pad(x, (0, 0, 0, missing))[: x.shape[0]] * max(x.shape[0], 3)


@pytest.mark.parametrize("function", [shares, halves, fills_up])
def test_python_may_compute_with_the_number_of_rows(function: Callable[[Any, Tensor], Any]) -> None:
    model = Between(function)
    layers = stages(model, X)
    assert len(layers) == 3
    for rows in (1, 3, 5, 6):
        if function is not fills_up or rows >= 3:
            assert torch.equal(layers(X[:rows]), model(X[:rows]))
    if function is fills_up:
        with pytest.raises(ValueError, match=r"batches with rows >= 3, and this one has rows = 2"):
            layers(X[:2])


def text_net(function: Callable[[Tensor], Any]) -> Net:
    """Return three blocks on [rows, length], with ``function`` before each."""

    def forward(model: Any, text: Tensor) -> Any:
        x = model.embedding(text)
        for block in model.blocks:
            x = block(function(x))
        return x

    return Net(forward, embedding=nn.Embedding(100, 4))


def pools(x: Tensor) -> Tensor:
    rows, length, width = x.shape
    y: Tensor = x.view(rows * length, width).tanh().view(rows, length, width) / length**0.5
    return y


def cuts_what_is_long(x: Tensor) -> Tensor:
    return x[:, :8] if x.shape[1] > 8 else x * 2


def looks_at_a_table(x: Tensor) -> Tensor:
    if x.shape[1] > 12:
        raise ValueError("too long")
    return x + torch.linspace(0, 1, 12)[: x.shape[1], None]


def test_python_may_compute_with_lengths() -> None:
    model = text_net(pools)
    layers = stages(model, tokens())
    for rows, length in ((2, 7), (5, 16), (1, 1)):
        text = tokens(length, rows)
        assert torch.equal(layers(text), model(text))


@pytest.mark.parametrize(
    ("function", "example", "fits", "sentence"),
    [
        (looks_at_a_table, 8, 12, r"recorded for batches with length <= 12, .* has length = 13"),
        (cuts_what_is_long, 6, 8, r"recorded for batches with length <= 8, .* has length = 13"),
        (lambda x: x + (x.numel() < 150), 8, 5, r"with .* < 150, .* rows = 4, length = 13"),
        (lambda x: x + bool(x.shape[1] & 1), 8, 6, r"with \(length & 1\) == 0, .* length = 13"),
        (lambda x: x + int(x.shape[1]) % 2, 8, 8, r"for tensors \[rows, 8\] and .* \[4, 13\]"),
        (lambda x: x * x.flatten(0, 1).shape[0], 9, 9, r"tensors \[rows, 9\] and .* \[4, 13\]"),
    ],
)
def test_a_batch_for_which_other_operations_would_run_is_refused_when_it_comes(
    function: Callable[[Tensor], Tensor], example: int, fits: int, sentence: str
) -> None:
    model = text_net(function)
    layers = stages(model, tokens(example))
    text = tokens(fits, 7)
    assert torch.equal(layers(text), model(text))
    with pytest.raises(ValueError, match=sentence):
        layers(tokens(13))


def test_a_length_that_would_close_a_cut_stays() -> None:
    """Behind the pooling, no tensor tells the length that the last operation asks for."""

    def forward(model: Any, text: Tensor) -> Any:
        first, second, last = model.blocks
        pooled = second(first(model.embedding(text)).mean(1))
        return last(pooled) * text.shape[1]

    layers = stages(Net(forward, embedding=nn.Embedding(100, 4)), tokens())
    assert len(layers) == 4
    assert verified(layers) == "6 rows"


def test_a_block_may_compare_what_it_is_given() -> None:
    class Block(nn.Linear):
        def forward(self, x: Tensor, length: int = 0) -> Tensor:
            return super().forward(x) * (2 if length > 8 else 1)

    def forward(model: Any, text: Tensor) -> Any:
        x = model.embedding(text)
        for block in model.blocks:
            x = block(x, length=text.shape[1])
        return x

    model = Net(forward, [Block(4, 4) for _ in range(3)], embedding=nn.Embedding(100, 4))
    layers = stages(model, tokens())
    for length in (3, 8, 9, 20):
        text = tokens(length)
        assert torch.equal(layers(text), model(text))


def few_rows(model: Any, x: Tensor) -> Tensor:
    if x.shape[0] > len(X) + 1:
        raise RuntimeError("too many rows")
    return x


def test_what_fails_with_other_sizes_is_said() -> None:
    with pytest.raises(NotRecordable, match=r"unsplit model fails in .* too many rows\); name a"):
        stages(Between(few_rows), X)


def many_rows(model: Any, x: Tensor) -> Tensor:
    if x.shape[0] < 5:
        raise RuntimeError("too few rows")
    return x


def test_a_model_that_wants_many_rows_is_recorded_with_more_of_them() -> None:
    layers = stages(Between(many_rows), X)
    assert len(layers) == 3
    with pytest.raises(ValueError, match=r"batches with rows >= 5, and this one has rows = 4"):
        layers(X[:4])


# --- numbers that know how Python computed them


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: (n + 1) // 2 * 3 - n % 4,
        lambda n: -(-n // 4),
        lambda n: 1 / n + 2**n - n**0.5,
        lambda n: math.ceil(n / 3) + math.floor(n * 0.4),
        lambda n: 5 - n + (n - 9) * -2,
        lambda n: (n >> 1 << 2) + (+n & ~3) + round(n / 4, 1) + abs(4 - n) + sum(divmod(n, 2)),
    ],
)
def test_an_expression_gives_what_python_computes(compute: Callable[[Any], Any]) -> None:
    found = compute(traced(7, "length", lambda comparison: None))
    size = Size(found.expression)
    assert size.names == ("length",)
    assert [size.at({"length": n}) for n in (3, 7, 12)] == [compute(n) for n in (3, 7, 12)]
    assert type(plain(found)) in (int, float)
    assert plain(found) == compute(7)


def test_comparisons_are_reported_as_they_were_true() -> None:
    seen: list[str] = []
    n = traced(7, "length", seen.append)
    assert max(n, 3) is n
    assert not n * 2 < 5
    assert n in (1, 7)
    assert n != 8
    assert bool(n)
    assert n != "7"
    assert seen == [
        "length >= 3", "(length * 2) >= 5", "length != 1", "length == 7",
        "length != 8", "length != 0",
    ]  # fmt: skip


def test_a_copy_is_a_plain_number() -> None:
    n = traced(7, "length", lambda comparison: None)
    assert [type(each) for each in copy.deepcopy([n, n / 2])] == [int, float]
    assert pickle.loads(pickle.dumps((n, n / 2))) == (7, 3.5)


def test_infinity_and_other_things_are_no_expressions() -> None:
    n = traced(7, "length", lambda comparison: None)
    assert type(n + math.inf) is float
    assert n < math.inf
    with pytest.raises(TypeError):
        n + "1"
