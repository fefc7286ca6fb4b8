"""Batches as people have them: dicts, tuples of any length, entries without rows."""

from collections import UserDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pipekit as pk
from pipekit import schedules
from pipekit.engine.runs.batch_reader import BatchReader
from tests.engine.examples import data, different, mlp, pipeline
from tests.engine.parametrized import TRANSPORTS, first_over_processes

ROWS, LENGTH, WORDS = 6, 5, 11


class Reads(nn.Module):
    """Words and a mask in, as transformers take them; a number for each word out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = x + block(x) * attention_mask[..., None]
        return {"logits": self.head(x)}


def network() -> Reads:
    torch.manual_seed(0)
    return Reads()


def dicts(batches: int = 3) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(WORDS, (batches, ROWS, LENGTH), generator=generator)
    masks = torch.randint(2, (batches, ROWS, LENGTH), generator=generator)
    return [
        {"input_ids": x, "attention_mask": mask.float(), "labels": x.roll(1, 1), "task": "copy"}
        for x, mask in zip(ids, masks, strict=True)
    ]


def word_loss(output: dict[str, Tensor], batch: Any) -> Tensor:
    assert batch["task"] == "copy"
    return F.cross_entropy(output["logits"].flatten(0, 1), batch["labels"].flatten())


def piece(entry: Any, part: int, parts: int) -> Any:
    """A microbatch of an entry; what has no rows stays whole."""
    if isinstance(entry, Tensor) and entry.dim() and len(entry) == ROWS:
        return entry.tensor_split(parts)[part]
    return entry


def plain_loop(model: nn.Module, batches: Any, call: Callable[[nn.Module, Any], Tensor]) -> Any:
    """Weights after training as anybody would, in two microbatches a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        for part in range(2):
            if isinstance(batch, dict):
                micro: Any = {key: piece(entry, part, 2) for key, entry in batch.items()}
            else:
                micro = [piece(entry, part, 2) for entry in batch]
            (call(model, micro) * 0.5).backward()
        optimizer.step()
    return model.state_dict()


def trained(model: nn.Sequential, batches: Any, loss: Any, **options: Any) -> pk.Pipeline:
    how = {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9), "loss": loss} | options
    pipe = pipeline(model, schedules.flush(2, 2), [1, len(model) - 1], **how)
    pipe.train(batches)
    return pipe


EXAMPLE = {name: dicts()[0][name] for name in ("input_ids", "attention_mask")}


@first_over_processes("mapping", [dict, UserDict])
def test_a_dict_goes_to_the_model_by_its_argument_names_and_whole_to_the_loss(
    mapping: Any, transport: str
) -> None:
    """As transformers' data collators make them, whose class is no dict."""
    layers = pk.stages(network(), EXAMPLE)
    batches = [mapping(batch) for batch in dicts()]
    pipe = trained(layers, batches, word_loss, transport=transport)

    def call(model: nn.Module, batch: Any) -> Tensor:
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return word_loss(output, batch)

    assert different(pipe.state_dict(), plain_loop(network(), dicts(), call)) == []


def test_a_longer_tuple_begins_with_the_models_arguments() -> None:
    layers = pk.stages(network(), tuple(EXAMPLE.values()))
    tuples = [tuple(batch.values()) for batch in dicts()]

    def loss(output: dict[str, Tensor], batch: Any) -> Tensor:
        assert len(batch) == 4
        assert batch[3] == "copy"
        return F.cross_entropy(output["logits"].flatten(0, 1), batch[2].flatten())

    pipe = trained(layers, tuples, loss)
    expected = plain_loop(network(), tuples, lambda m, batch: loss(m(*batch[:2]), batch))
    assert different(pipe.state_dict(), expected) == []


def weighted(output: Tensor, batch: Any) -> Tensor:
    """With weights of the classes, which have no rows, and a number."""
    assert batch["weight"].shape == (3,)
    assert batch["scale"].shape == ()
    loss = ((output - batch["y"]) ** 2 * batch["weight"]).mean() * batch["scale"]
    assert isinstance(loss, Tensor)
    return loss


def named() -> list[dict[str, Any]]:
    about = {"weight": torch.tensor([1.0, 2.0, 3.0]), "scale": torch.tensor(0.5), "name": "half"}
    return [{"x": x, "y": y, **about} for x, y in data(3, rows=ROWS)]


@first_over_processes("inputs", [lambda batch: batch["x"], "x"])
def test_a_sequential_is_told_what_it_takes(inputs: Any, transport: str) -> None:
    pipe = trained(mlp(6, 6, 3), named(), weighted, inputs=inputs, transport=transport)
    expected = plain_loop(mlp(6, 6, 3), named(), lambda m, batch: weighted(m(batch["x"]), batch))
    assert different(pipe.state_dict(), expected) == []


@TRANSPORTS
def test_they_are_evaluated_and_predicted_from(transport: str) -> None:
    layers = pk.stages(network(), EXAMPLE)
    pipe = trained(layers, dicts(), word_loss, transport=transport)
    model = network()
    model.load_state_dict(pipe.state_dict())
    with torch.no_grad():
        outputs = [model(batch["input_ids"], batch["attention_mask"]) for batch in dicts()]
        losses = [word_loss(*each).item() for each in zip(outputs, dicts(), strict=True)]
    assert pipe.evaluate(dicts()) == pytest.approx(sum(losses) / 3, rel=1e-6)
    predicted = pipe.predict(dicts())
    assert len(predicted) == 3
    for output, expected in zip(predicted, outputs, strict=True):
        assert torch.allclose(output["logits"], expected["logits"], atol=1e-6)


def test_labels_do_not_enter_the_first_stage() -> None:
    batch = BatchReader(pk.stages(network(), EXAMPLE)).read(dicts()[0], 2, 0)
    assert list(batch.input) == ["input_ids", "attention_mask"]
    assert [*batch.target] == [*dicts()[0]]
    assert batch.target["task"] == "copy"


def test_the_rows_are_those_of_most_tensors_that_the_model_takes() -> None:
    reader = BatchReader(nn.Sequential(nn.Identity()), lambda batch: batch[:3])
    batch = reader.read((torch.zeros(1, 5), torch.zeros(4, 2), torch.zeros(4), "label"), 2, 0)
    assert batch.rows == 4
    assert batch.row_shapes == ((1, 5), (2,), ())


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"x": torch.tensor(1.0)}, ValueError, "batch 7: no tensor that the model takes"),
        ({"x": torch.zeros(1, 3)}, ValueError, "1 row for 2 microbatches"),
        ({"x": [torch.zeros(4), "a"]}, TypeError, "not str"),
    ],
)
def test_dicts_that_cannot_be_read(batch: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BatchReader(nn.Sequential(nn.Identity())).read(batch, 2, 7)


def test_a_batch_that_lacks_an_argument_is_refused_before_training() -> None:
    layers = pk.stages(network(), EXAMPLE)
    batch = {name: entry for name, entry in dicts()[0].items() if name != "attention_mask"}
    with pytest.raises(ValueError, match=r"example's entries \['input_ids', 'attention_mask'\]"):
        trained(layers, [batch], word_loss)


class Scales(nn.Module):
    """Has arguments that a batch may leave out, or hold no tensors for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0, labels: Any = None
    ) -> Tensor:
        for layer in self.layers:
            x = layer(x) * scale
        return x if mask is None else x * mask


X, MASK = torch.linspace(-1, 1, 12).view(4, 3), torch.eye(4, 3)


def fitted(example: Any, batches: Any, **options: Any) -> pk.Pipeline:
    layers = pk.stages(Scales(), example)
    return trained(layers, batches, lambda output, batch: output.square().mean(), **options)


@pytest.mark.parametrize(
    ("example", "batch"),
    [
        ({"x": X, "mask": None, "scale": 2.0}, {"x": X, "mask": None, "scale": 2.0, "labels": X}),
        ({"x": X, "mask": None, "scale": 2.0}, {"x": X, "labels": X}),
        (UserDict(x=X, scale=2.0), {"x": X, "mask": None, "scale": 2.0, "labels": X}),
        ((X, None, 2.0), (X, None, 2.0, X)),
        ((X, None, 2.0), ((X, None, 2.0), X)),
    ],
)
def test_what_is_no_tensor_may_stand_in_batches_as_in_the_example(example: Any, batch: Any) -> None:
    pipe = fitted(example, [batch])
    model = Scales()
    with torch.no_grad():
        model.load_state_dict(pipe.state_dict())
        output = model(X, scale=2.0)
    taken = batch[0] if isinstance(batch, tuple) and len(batch) == 2 else batch
    assert torch.equal(pipe.predict([taken if isinstance(taken, dict) else taken[:3]])[0], output)


class MaskedLast(Scales):
    """Takes a tensor behind what is none."""

    def forward(self, x: Tensor, scale: float | None, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask, scale or 1.0)


def test_to_predict_what_a_function_selects_is_taken_once() -> None:
    """What is no tensor is left out by its place; of the rest nothing else has that place."""
    layers = pk.stages(MaskedLast(), (X, None, MASK))
    reader = BatchReader(layers, lambda batch: (batch["x"], None, batch["mask"]))
    x, mask = reader.unlabelled({"x": X, "mask": MASK}, 1, 0).input
    assert x is X
    assert mask is MASK


@pytest.mark.parametrize(
    ("example", "batch", "message"),
    [
        ({"x": X}, {"x": X, "mask": MASK}, r"has 'mask', which the model's forward takes, and .*"),
        ({"x": X}, {"x": X, "scale": 2.0}, r"has 'scale', .*give an example that has it, or .*inp"),
        ({"x": X, "mask": None}, {"x": X, "mask": MASK}, r"'mask'\] is a tensor and was None in"),
        ({"x": X, "scale": 1.0}, {"x": X, "scale": 2.0}, r"'scale'\] is 2.0 and was 1.0 in the ex"),
        (
            {"x": X, "mask": MASK},
            {"x": X, "mask": None},
            r"'mask'\] is None and was a tensor.*ones",
        ),
        ((X, None), (X, MASK, X), r"batch\[1\] is a tensor and was None"),
        (X, {"x": X}, r"has the entries \['x'\] and the model takes what is no dict: .*inputs="),
        ({"x": X}, (X, MASK, X), r"recorded with a dict: pass dicts"),
    ],
)
def test_no_argument_of_the_models_is_left_out_unsaid(
    example: Any, batch: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(example, [batch])


def test_what_the_model_shall_not_get_can_be_said() -> None:
    pipe = fitted({"x": X}, [{"x": X, "mask": MASK}], inputs=["x"])
    without = fitted({"x": X}, [{"x": X}])
    assert different(pipe.state_dict(), without.state_dict()) == []
