"""Data as people have them: edited in place, of several forms, random, with and without rows."""

import copy
import random
import re
import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from pipekit import Execution, Pipeline, schedules
from tests.people.plain import plain_loop

SGD = partial(torch.optim.SGD, lr=0.1)
X, Y = torch.arange(64.0).sin().view(8, 8), torch.arange(8) % 3


def network(*first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def pipeline(model: Any, microbatches: int = 2, stages: int = 2, **how: Any) -> Pipeline:
    how = {"optimizer": SGD, "loss": F.cross_entropy, **how}
    return Pipeline(model, schedules.flush(stages, microbatches), **how)


def warned(call: Callable[[], Any], *words: str) -> list[str]:
    """The warnings that have all these words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if all(word in str(w.message) for word in words)]


# --- a model that edits its input ----------------------------------------------------------------


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2.0)


class DoublesEntry(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        batch["x"] = batch["x"] * 2.0
        return batch["x"]


class TakesAway(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch.pop("x")


class Shifts(nn.Module):
    """Through a view, in a layer behind the first."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 8)[:, 1:].add_(1.0).sum(1, keepdim=True) + x


EDITS = [
    pytest.param([Doubles()], X, id="in place"),
    pytest.param([nn.Dropout(0.5, inplace=True)], X, id="at random"),
    pytest.param([nn.Identity(), Shifts()], X, id="a view"),
    pytest.param([DoublesEntry()], {"x": X}, id="an entry of a dict"),
    pytest.param([TakesAway()], {"x": X}, id="an entry taken away"),
]


@pytest.mark.parametrize(("first", "x"), EDITS)
def test_a_model_that_edits_its_input_is_warned_of_once(first: list[nn.Module], x: Any) -> None:
    data = [(copy.deepcopy(x), Y)] * 2
    made = pipeline(network(*first))

    def train() -> None:
        made.evaluate(data)
        made.train(data)
        made.train(data)

    assert len(warned(train, "edits its input", "x = x.clone()")) == 1
    assert torch.equal(data[0][0]["x"] if isinstance(x, dict) else data[0][0], X)


class Labels(nn.Module):
    """Changes a dict's entry, to the same in each epoch."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        batch["x"] = batch["x"].float()
        return batch["x"] + 1.0


def test_a_batch_that_is_part_of_a_graph_is_refused() -> None:
    weights = torch.ones(8, requires_grad=True)
    with pytest.raises(ValueError, match=r"a batch was computed from weights.*x.detach\(\)"):
        pipeline(network()).train([(X * weights, Y)])
    pipeline(network()).train([(X.clone().requires_grad_(), Y)])


@pytest.mark.parametrize(
    ("first", "x"),
    [
        (nn.ReLU(inplace=True), X),
        (nn.Hardtanh(inplace=True), X),
        (Labels(), {"x": (X * 4).long()}),
        (nn.Sequential(nn.Linear(8, 8), Doubles()), X),
    ],
    ids=["relu", "hardtanh", "an entry's type", "inside"],
)
def test_what_is_the_same_in_the_next_epoch_is_not_warned_of(first: nn.Module, x: Any) -> None:
    model = network(first)
    plain, data = copy.deepcopy(model), [(copy.deepcopy(x), Y)] * 2
    made = pipeline(model, 1)
    assert not warned(lambda: made.train(data), "edits")
    want = plain_loop(plain, SGD, F.cross_entropy, [((inputs,), y) for inputs, y in data])
    assert pipeline(model, 1).train([(copy.deepcopy(x), Y)] * 2).losses == pytest.approx(want)


def test_a_loader_that_stacks_new_tensors_has_nothing_to_be_edited() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    made = pipeline(network(Doubles()))
    assert not warned(lambda: [made.train(loader) for _ in range(2)], "edits")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loader_with_a_generator_shuffles_each_epoch_as_in_the_plain_loop(wrapped: bool) -> None:
    def epochs() -> Any:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True, generator=generator)
        return tqdm(loader, disable=True) if wrapped else loader

    plain, made, mine, theirs = network(), pipeline(network(), 1), epochs(), epochs()
    for _ in range(3):
        made.evaluate(mine)
        losses = made.train(mine).losses
        list(theirs)
        assert losses == pytest.approx(plain_loop(plain, SGD, F.cross_entropy, theirs))


class Longer(list[Any]):
    def __len__(self) -> int:
        return 1


def dropped(seed: Any = "torch", heard: int | None = None, **how: Any) -> list[float]:
    made = pipeline(network(nn.Dropout(0.5)), seed=seed, **how)
    if heard is not None:
        torch.manual_seed(heard)
    return made.train([(X, Y)] * 2).losses


def test_manual_seed_is_heard_where_no_seed_is_given() -> None:
    one, other = dropped(heard=0), dropped(heard=1)
    assert one != other
    assert one == dropped(heard=0) == dropped(0)
    assert other == dropped(1)


@pytest.mark.parametrize(
    "how",
    [
        {"stages": 1},
        {"stages": 3},
        pytest.param({"transport": "distributed"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_is_heard_alike_on_any_stages_and_in_worker_processes(how: dict[str, Any]) -> None:
    assert dropped(heard=7, **how) == dropped(heard=7)


def test_it_is_heard_between_two_trainings() -> None:
    made, start = pipeline(network(nn.Dropout(0.5))), network(nn.Dropout(0.5)).state_dict()
    losses = []
    for seed in (1, 2):
        made.load_state_dict(start)
        torch.manual_seed(seed)
        losses.append(made.train([(X, Y)]).losses)
    assert losses[0] != losses[1]
    assert losses[0] == dropped(1)[:1]


def test_a_seed_that_is_given_is_the_seed() -> None:
    assert dropped(3, heard=1) == dropped(3, heard=2)


def test_without_any_seed_it_is_zero() -> None:
    want = dropped(0)
    with torch.random.fork_rng():
        made = pipeline(network(nn.Dropout(0.5)))
        torch.set_rng_state(torch.Generator().get_state())  # as a process begins
        assert made.train([(X, Y)] * 2).losses == want


# --- batches without rows, and of another form ---------------------------------------------------

RAGGED = [torch.ones(3, 8), torch.ones(5, 8)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("x", "what"),
    [
        (lambda: torch.nested.nested_tensor(RAGGED), r"nested tensor.*to_padded_tensor\(x, 0.0\)"),
        (lambda: torch.nested.nested_tensor(RAGGED, layout=torch.jagged), "nested tensor"),
        (lambda: X.relu().to_sparse(), r"torch.sparse_coo.*pass x.to_dense\(\)"),
        (lambda: X.relu().to_sparse_csr(), r"torch.sparse_csr.*pass x.to_dense\(\)"),
        (lambda: pack_sequence(RAGGED[::-1]), "PackedSequence.*padded rows and their lengths"),
    ],
)
def test_what_has_no_rows_to_cut_is_refused(x: Callable[[], Any], what: str) -> None:
    batches = (x(), Y), (X, x()), {"x": x(), "y": Y}, (X, Y, x())
    for batch, microbatches in zip(batches, (1, 2, 2, 1), strict=True):
        how = Execution(inputs="x") if isinstance(batch, dict) else Execution()
        with pytest.raises(TypeError, match=what):
            pipeline(network(), microbatches, execution=how).train([batch])
    with pytest.raises(TypeError, match=what):
        pipeline(network()).predict([x()])


@pytest.mark.parametrize("said", [None, {"graph": False}])
def test_a_sparse_entry_without_rows_goes_to_the_loss_whole(said: Any) -> None:
    graph = torch.eye(8 if said else 5).to_sparse()
    how = Execution(inputs="x", rows=said)

    def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(output, batch["y"]) * batch["graph"].to_dense().sum()

    made = pipeline(network(), loss=loss, execution=how)
    factor = graph.to_dense().sum().item()
    plain = plain_loop(network(), SGD, lambda o, y: F.cross_entropy(o, y) * factor, [(X, Y)], 2)
    assert made.train([{"x": X, "y": Y, "graph": graph}]).losses == pytest.approx(plain)


@pytest.mark.parametrize(
    ("other", "said", "kind"),
    [
        ((X, Y, Y), r"\(2d float32, 1d int64, 1d int64\) after \(2d float32, 1d int64\)", list),
        ((X, Y, Y), r"\(2d float32, 1d int64, 1d int64\) after \(2d float32, 1d int64\)", iter),
        ((X.double(), Y), r"\(2d float64, 1d int64\) after \(2d float32", list),
        (((X, X), Y), r"\(\(2d float32, 2d float32\), 1d int64\)", iter),
        ((X, None), r"\(2d float32, NoneType\)", list),
    ],
)
def test_the_error_of_a_batch_of_another_form_says_so(
    other: Any, said: str, kind: Callable[[Any], Any]
) -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:
        pipeline(network()).train(kind([(X, Y), other, (X, Y)]))
    note = caught.value.__notes__[-1]
    assert re.match(rf"\(batch 1 has another form than batch 0: {said}", note)


@pytest.mark.parametrize("is_pair", [False, True])
def test_a_list_of_rows_is_refused_as_detectors_take_it(is_pair: bool) -> None:
    images, boxes = [*torch.randn(4, 1, 8)], [{"boxes": X[:n]} for n in range(4)]
    batch = (images, boxes) if is_pair else {"images": images, "boxes": boxes}
    how = Execution(inputs="images")
    with pytest.raises(ValueError, match=r"a list of 4 tensors, one a row.*: stack them"):
        pipeline(network(), execution=how).train([batch])
    views = {"images": [X, X], "y": Y, "names": ["left", "right"]}
    made = pipeline(network(Joins()), loss=lambda o, b: F.cross_entropy(o, b["y"]), execution=how)
    want = plain_loop(network(), SGD, F.cross_entropy, [(X + X, Y)], 2)
    assert made.train([views]).losses == pytest.approx(want)


class Joins(nn.Module):
    def forward(self, several: list[Tensor]) -> Tensor:
        return sum(several[1:], several[0])


def test_other_errors_say_nothing_of_forms() -> None:
    pipe = pipeline(network())
    pipe.train([(X, Y)] * 2)
    with pytest.raises(RuntimeError, match="shapes") as caught:
        pipe.train([(X, Y), (X[:, :5], Y)])
    assert not any("form" in note for note in caught.value.__notes__)


def test_batches_may_take_turns_in_what_they_hold() -> None:
    def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        weights = batch.get("weights", torch.ones(len(output)))
        return (F.cross_entropy(output, batch["y"], reduction="none") * weights).mean()

    one, other = {"x": X, "y": Y}, {"x": X, "y": Y, "weights": torch.arange(8.0)}
    made = pipeline(network(), loss=loss, execution=Execution(inputs="x"))
    got: list[float] = []
    assert not warned(lambda: got.extend(made.train([one, other] * 2).losses))
    want = plain_loop(network(), SGD, loss, [(each["x"], each) for each in [one, other] * 2])
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("batch", "transport"),
    [
        ((X, None), "threads"),
        ([X, None], "threads"),
        ((X,), "threads"),
        pytest.param((X, None), "distributed", marks=pytest.mark.slow),
    ],
)
def test_a_target_may_be_none(batch: Any, transport: str) -> None:
    def loss(output: Tensor, _: Any) -> Tensor:
        return output.pow(2).mean()

    made = pipeline(network(), loss=loss, transport=transport)
    assert made.evaluate([batch]) == pytest.approx(loss(network()(X), None).item(), rel=1e-6)
    want = plain_loop(network(), SGD, loss, [(X, Y)] * 3, 2)
    assert made.train([batch] * 3).losses == pytest.approx(want, rel=1e-6)


class OnlyItems(UserDict[Any, Any]):
    """As outputs of transformers, which are dicts that cannot be updated."""

    update = None  # type: ignore[assignment]

    def __init__(self, items: dict[Any, Any]) -> None:
        self.data = items


@pytest.mark.parametrize(
    "target",
    [
        (Y, 0.3),
        {0: Y, 1: torch.tensor(0.3)},
        (Y.numpy(), 0.3),
        {0: Y.tolist(), 1: 0.3},
        {0: [*Y], 1: 0.3},
        UserDict({0: UserDict({"labels": Y}), 1: 0.3}),
        OnlyItems({0: Y, 1: 0.3}),
    ],
    ids=[
        "tuple",
        "dict",
        "array",
        "list",
        "list of tensors",
        "as of tokenizers",
        "as of transformers",
    ],
)
def test_a_target_may_hold_arrays_lists_and_a_number_as_mixups_does(target: Any) -> None:
    is_pair = isinstance(target, tuple)

    def mixed(output: Tensor, target: Any) -> Any:
        y = target if is_pair else target["y"]
        labels = y[0]["labels"] if isinstance(y[0], UserDict) else y[0]
        return y[1] * F.cross_entropy(output, torch.as_tensor(labels))

    made = pipeline(network(), loss=mixed, execution=Execution(inputs=None if is_pair else "x"))
    batch = (X, target) if is_pair else {"x": X, "y": target}
    want = plain_loop(network(), SGD, lambda o, y: 0.3 * F.cross_entropy(o, y), [(X, Y)] * 3)
    assert made.train([batch] * 3).losses == pytest.approx(want, rel=1e-5)
    with pytest.raises(ValueError, match="must have the same first dimension"):
        made.train([(X, (Y[:7], 0.3))])


# --- tables and rows, random numbers -------------------------------------------------------------


def with_table(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(output, batch["y"]) * batch["table"].mean()


def weighted(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (F.cross_entropy(output, batch["y"], reduction="none") * batch["table"]).mean()


@pytest.mark.parametrize(
    ("loss", "said", "warns"),
    [
        (with_table, None, 1),
        (with_table, {"table": False}, 0),
        (with_table, {"table": True}, 0),
        (weighted, None, 0),
    ],
)
def test_a_table_as_long_as_the_rows_is_warned_of(loss: Any, said: Any, warns: int) -> None:
    how = Execution(inputs="x", rows=said)
    batch = {"x": X, "y": Y, "table": torch.arange(1.0, 9.0), "names": [*"abcdefgh"]}
    made = pipeline(network(), loss=loss, execution=how)
    found = warned(lambda: made.train([batch] * 2), "batch['table']", "Execution(rows=")
    assert len(found) == warns


class Adds(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["x"] + batch["places"]


def test_class_weights_as_long_as_the_rows_are_named_before_the_loss_fails() -> None:
    batch, execution = {"x": X[:3], "y": Y[:3], "table": torch.ones(3)}, Execution(inputs="x")

    def loss(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(output, batch["y"], batch["table"])

    words = pytest.warns(UserWarning, match=r"'table'.*takes it whole.*where it fails.*False")
    with words, pytest.raises(RuntimeError, match="weight tensor"):
        pipeline(network(), loss=loss, execution=execution).train([batch])


def test_an_entry_of_the_model_stays_whole_where_the_user_says_so() -> None:
    batch = {"x": X, "places": torch.arange(8.0), "y": Y}
    how = Execution(inputs=["x", "places"], rows={"places": False})
    made = pipeline(
        network(Adds()), loss=lambda o, batch: F.cross_entropy(o, batch["y"]), execution=how
    )
    moved = [(X + batch["places"], Y)] * 2
    want = plain_loop(network(), SGD, F.cross_entropy, moved, 2)
    assert made.train([batch] * 2).losses == pytest.approx(want, rel=1e-6)


def test_names_of_entries_are_not_ignored_for_tuples() -> None:
    made = pipeline(network(), loss=lambda o, batch: o.mean(), execution=Execution(inputs="x"))
    with pytest.raises(ValueError, match="those of a tuple have no names"):
        made.train([(X, X, Y)])


class Scaled:
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return ((X * self.draw(), Y) for _ in range(3))


def one() -> float:
    return 1.0


def of_numpy() -> float:
    return float(np.random.rand())


def of_python() -> float:
    return random.random()


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("data", "loss", "stages", "warns"),
    [
        (of_numpy, of_numpy, 2, 1),
        (of_python, of_python, 2, 1),
        (of_numpy, of_numpy, 1, 0),
        (of_numpy, one, 2, 0),
        (one, of_numpy, 2, 0),
        (of_numpy, of_python, 2, 0),
        (lambda: GENERATOR.random(), of_numpy, 2, 0),
    ],
)
def test_data_and_loss_that_draw_from_one_generator_are_warned_of(
    data: Any, loss: Any, stages: int, warns: int
) -> None:
    made = pipeline(network(), stages=stages, loss=lambda o, y: F.cross_entropy(o * loss(), y))
    assert len(warned(lambda: made.train(Scaled(data)), "both draw from")) == warns


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * of_numpy()


@pytest.mark.parametrize(
    ("draws", "loss", "warns"),
    [
        ((0,), of_numpy, 1),  # the last stage's worker computes the loss
        ((3,), of_numpy, 0),
        ((0, 3), one, 1),
        ((0, 1), one, 0),
    ],
)
def test_layers_that_draw_in_turns_are_warned_of(
    draws: tuple[int, ...], loss: Any, warns: int
) -> None:
    layers = [Draws() if n in draws else nn.Linear(8, 8) for n in range(4)]
    made = pipeline(layers, loss=lambda o, y: F.cross_entropy(o * loss(), y), balance=[2, 2])
    assert len(warned(lambda: made.train([(X, Y)]), "both draw from NumPy's")) == warns


@pytest.mark.slow
def test_a_loss_over_processes_draws_as_the_program_is_seeded() -> None:
    found = []
    for seed in 0, 0, 1:
        np.random.seed(seed)
        random.seed(seed)
        made = pipeline(
            network(),
            loss=lambda o, y: F.cross_entropy(o * (of_numpy() + of_python()), y),
            transport="distributed",
        )
        found.append(made.train([(X, Y)] * 2).losses)
        made.close()
    assert found[0] == found[1] != found[2]
