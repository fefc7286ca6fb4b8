"""``pipekit train`` and ``profile`` with what the user wrote: ``package.module:name``."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pipekit import Profile
from pipekit.cli.common.options import PUBLISHED, TRAINED
from pipekit.losses.losses import default_loss, made_up_target
from pipekit.models import PUBLISHED as NETWORKS
from pipekit.workloads import WORKLOADS
from tests.cli.conftest import Printed

NETS = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)

def alone():
    return Residual()

def with_example():
    return Residual(), torch.randn(4, 4)

def number():
    return 3

def batches():
    torch.manual_seed(1)
    for _ in range(5):
        x = torch.randn(8, 4)
        yield x, (x.sum(dim=1) > 0).long()

class Named(Residual):
    def forward(self, x, mask=None):
        return super().forward(x * mask)

def named():
    return Named()

def of_width(width):
    return Residual()

def dicts():
    for x, classes in batches():
        yield {"x": x, "mask": torch.ones_like(x)}, classes

def no_pairs():
    return [torch.randn(8, 4)]

def squares(output, target):
    return ((output - nn.functional.one_hot(target, 2)) ** 2).mean()
"""


@pytest.fixture
def nets(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a module of networks, where the command runs."""
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    Path("nets.py").write_text(NETS)
    return elsewhere


def test_the_names_that_stand_without_torch_are_the_real_ones() -> None:
    assert TRAINED.split(", ") == list(WORKLOADS)
    assert sorted(PUBLISHED.split(", ")) == sorted(NETWORKS)


def test_a_model_of_ones_own_is_trained_on_ones_own_data(printed: Printed, nets: Path) -> None:
    text = printed(
        "train --model nets:alone --data nets:batches --test-data nets:batches "
        "--stages 2 --microbatches 2 --epochs 2 --lr 0.05"
    )
    rows = re.findall(r"│ +(\d) │ +(\d\.\d{4}) │ +(\d\.\d{4}) │", text)
    assert [epoch for epoch, _, _ in rows] == ["1", "2"]
    assert float(rows[1][2]) < float(rows[0][1]) < 1  # it learns; at first about ln 2
    assert "data: nets:batches" in " ".join(text.split())


def test_a_loss_of_ones_own_and_fewer_steps(printed: Printed, nets: Path) -> None:
    line = "train --model nets:with_example --data nets:batches --stages 2 --microbatches 2"
    text = printed(f"{line} --loss nets:squares --steps 1 --output out")
    assert re.search(r"│ +1 │ +0\.\d{4} │ +\d", text)  # no column of a test
    assert "test" not in text.splitlines()[2]
    events = Path("out/trace.csv").read_text().splitlines()
    assert len(events) == 1 + 2 * (2 * 2 + 1)  # stages, microbatches, F and B, U


def test_inputs_may_be_dicts_of_arguments(printed: Printed, nets: Path) -> None:
    options = "--stages 2 --microbatches 2 --epochs 2 --lr 0.05"
    text = printed(f"train --model nets:named --data nets:dicts {options}")
    pairs = printed(f"train --model nets:alone --data nets:batches {options}")
    losses = re.compile(r"│ +\d │ +(\d\.\d{4}) │")
    assert len(losses.findall(text)) == 2
    assert losses.findall(text) == losses.findall(pairs)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ("with_example --repeats 1", 4),
        ("with_example --rows 6 --analytic 'V100 16GB'", 6),
        ("alone --data nets:batches --repeats 1", 8),
        ("named --data nets:dicts --loss nets:squares --repeats 1", 8),
    ],
)
def test_a_model_of_ones_own_is_profiled(
    options: str, rows: int, printed: Printed, nets: Path
) -> None:
    printed(f"profile nets:{options} --output p.json")
    made = Profile.load("p.json")
    assert made.rows == rows
    assert made.parameter_bytes == 4 * (5 * 8 + 3 * 9 * 8 + 9 * 2)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --model nets:nothing --data nets:batches", "nets has no 'nothing', only"),
        ("train --model nowhere.py:alone", "there is no file nowhere.py"),
        ("train --model nets:", "is not a package.module:name"),
        ("train --model nets:alone", "what does nets:alone learn? Name --data"),
        ("train --data nets:batches", "are for a model of yours: convnet has its own"),
        ("train --model nets:number --data nets:batches", "must return a torch.nn.Module"),
        ("train --model nets:alone --data nets:no_pairs", "must give pairs (input, target)"),
        ("train --model nets:of_width --data nets:batches", "of_width() missing 1 required"),
        ("profile nets:alone", "let it return (model, example)"),
        ("profile nets:with_example --loss nets:squares", "--loss needs --data"),
        ("profile mlp --data nets:batches", "mlp has its own"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(
    line: str, says: str, refused: Printed, nets: Path
) -> None:
    assert re.search(".*".join(map(re.escape, says.split(".*"))), refused(line))


class TestDefaultLoss:
    def test_classes_behind_or_second(self) -> None:
        logits, classes = torch.randn(3, 5, 4), torch.randint(4, (3, 5))
        expected = nn.functional.cross_entropy(logits.flatten(0, 1), classes.flatten())
        assert default_loss(logits, classes) == expected
        assert default_loss({"other": 1, "logits": logits}, classes) == expected
        assert default_loss(logits.transpose(1, 2), classes) == pytest.approx(expected.item())
        output, target = torch.randn(3, 2), torch.randn(3, 2)  # other numbers
        assert default_loss((output,), target) == nn.functional.mse_loss(output, target)

    def test_what_fits_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"an output \[3, 2\] and a target \[4\]"):
            default_loss(torch.randn(3, 2), torch.zeros(4))
        with pytest.raises(ValueError, match="it has no loss"):
            default_loss(torch.zeros(3, dtype=torch.int64), torch.zeros(3))

    @pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 4, 5)])
    def test_a_made_up_target_fits(self, shape: tuple[int, ...]) -> None:
        output = torch.randn(shape)
        assert default_loss(output, made_up_target(output)).ndim == 0
