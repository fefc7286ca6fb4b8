"""A trainer in processes of its own: a verdict, or one sentence; and nothing is left behind."""

import json
import re
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from pipekit.parity.adapter import Stated, train
from pipekit.parity.judge import parity
from pipekit.parity.verdict import Fault
from tests.attacks.left import is_alive
from tests.parity.adapters.deepspeed import DeepSpeed
from tests.parity.adapters.torch_pipelining import torch_adapter

TRAINER = """
import os, subprocess, sys, time
import torch
from tests.parity.small import Small


class Right(Small):
    pass


class Missing(Small):
    def gradients(self):
        return {n: p.grad for n, p in self.model.named_parameters() if "bias" in n}


class Renamed(Small):
    def parameters(self):
        return {"module." + n: p for n, p in super().parameters().items()}


class Flat(Small):
    def parameters(self):
        return {n: p.flatten() for n, p in super().parameters().items()}


class NotANumber(Small):
    def loss(self, output, target):
        return super().loss(output, target) * float("nan")


class NoTensors(Small):
    def parameters(self):
        return [p for p in self.model.parameters()]


class Elsewhere(Small):
    def parameters(self):
        return {n: p.to("meta") for n, p in super().parameters().items()}


class Raises(Small):
    def step(self, batch):
        raise RuntimeError("no memory on this device")


class Leaves(Small):
    def step(self, batch):
        print("goodbye", flush=True)
        os._exit(3)


class Hangs(Small):
    def step(self, batch):
        wait = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.children = [subprocess.Popen(wait, start_new_session=own) for own in (False, True)]
        print("waiting with", *(child.pid for child in self.children), os.getpid(), flush=True)
        time.sleep(600)


class Floods(Small):
    def step(self, batch):
        for _ in range(200):
            os.write(1, b"x" * 1_000_000)
        time.sleep(3)  # whoever has started it looks each second
        assert os.fstat(1).st_size < 100_000_000
        return super().step(batch)


class Numbered(Small):
    def parameters(self):
        return dict(enumerate(super().parameters().values()))


class TellsAll(Small):
    def step(self, batch):
        raise RuntimeError("x" * 1_000_000)


class Random(Small):
    def cut(self, batch):
        return [(torch.nn.functional.dropout(x, 0.1), y) for x, y in super().cut(batch)]


class Summed(Small):
    def loss(self, output, target):
        return super().loss(output, target) * self.microbatches
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[[str], str]:
    file = tmp_path / "trainer.py"
    file.write_text(TRAINER)
    return lambda name: f"{file}:{name}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Missing", "gradients() has none for '0.weight', which its parameters() has: return it"),
        ("Renamed", "'module.0.weight', and the model no such parameter; did you mean '0.weight'?"),
        ("Flat", "parameters() has '0.weight' with the shape [256], and the model's is [16, 16]"),
        ("NotANumber", "parameters() has NaN or infinity in '0.weight' after the first update"),
        ("NoTensors", "parameters() returns list: return a dict of tensors"),
        ("Elsewhere", "has the device 'meta' for '0.weight': return tensors of numbers"),
        ("Numbered", "parameters() has 0, and the model no such parameter"),
        ("Nobody", "trainer.py has no 'Nobody', only"),
    ],
)
def test_what_no_model_could_have_is_one_sentence(
    name: str, sentence: str, trainer: Callable[[str], str]
) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)) as refused:
        train(trainer(name), "dense")
    assert "\n" not in str(refused.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Raises", "rank 0 in step() of batch 1: RuntimeError: no memory on this device"),
        ("Leaves", "left with exit code 3, rank 0 in step() of batch 1, its last words: goodbye"),
        ("TellsAll", "RuntimeError: xxx"),
    ],
)
def test_a_trainer_without_verdict_is_one_sentence(
    name: str, sentence: str, trainer: Callable[[str], str]
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        parity(trainer(name))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 3000


@pytest.mark.long
def test_a_trainer_that_hangs_is_ended_with_its_children(trainer: Callable[[str], str]) -> None:
    with pytest.raises(ValueError, match=r"was ended after 30 s: rank 0 in step") as refused:
        parity(trainer("Hangs"), timeout=30)
    started = [int(word) for word in str(refused.value).split() if word.isdigit()][-3:]
    time.sleep(0.5)
    assert not [*filter(is_alive, started)]


@pytest.mark.long
def test_gigabytes_of_output_do_no_harm(trainer: Callable[[str], str]) -> None:
    assert parity(trainer("Floods"), timeout=300).ok


@pytest.mark.long
def test_random_numbers_of_its_own_are_other_dropout(trainer: Callable[[str], str]) -> None:
    verdict = parity(trainer("Random"))
    assert not verdict.ok
    assert Fault.DROPOUT in verdict.classes


@pytest.mark.long
def test_torchs_pipelining_is_right_on_two_processes() -> None:
    verdict = parity(torch_adapter("Schedule1F1B"), processes=2)
    assert verdict.ok, verdict.text
    assert len(verdict.parameters) == 32


@pytest.mark.long
def test_deepspeeds_pipeline_engine_is_right_on_two_processes() -> None:
    pytest.importorskip("deepspeed")
    verdict = parity(DeepSpeed, processes=2, timeout=300)
    assert verdict.ok, verdict.text
    assert len(verdict.parameters) == 32


@pytest.mark.long
def test_the_command_says_it_and_leaves_with_a_code(
    trainer: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from pipekit.cli import app

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["parity", *arguments])

    target = str(tmp_path / "new" / "verdict.json")
    right = run(trainer("Right"), "--json", target)
    assert right.exit_code == 0
    assert "dense: right: 32 parameters" in right.stdout
    (verdict,) = json.loads(Path(target).read_text())
    assert verdict["ok"]
    assert verdict["parameters"]["0.weight"]["right"]
    assert run(trainer("Summed")).exit_code == 1
    assert run(trainer("Raises")).exit_code == 2


def test_what_cannot_be_run_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="did you mean 'tied'"):
        parity("adapter.py:Adapter", model="tide")


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"microbatches": 0}, "microbatches is 0: input should be greater than or equal to 1"),
        ({"microbatches": True}, "microbatches is True: input should be a valid integer"),
        ({"stages": "4"}, "stages is '4': input should be a valid integer"),
        ({"stale": "late"}, "stale is 'late': input should be a valid integer"),
        ({"balance": [8, 7]}, r"balance is \(8, 7\): let it add up to 16 layers"),
        ({"stages": 17}, "stages are 17: the layers are 16"),
    ],
)
def test_what_an_adapter_states_must_be_possible(stated: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"the adapter's {sentence}"):
        Stated.by(type("Adapter", (), stated)(), layers=16)
    assert Stated.by(type("Adapter", (), {"balance": [8, 8]})(), layers=16).stages == 2


@pytest.mark.long
def test_pytest_has_the_fixture_and_starts_without_torch(
    pytester: pytest.Pytester, trainer: Callable[[str], str]
) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_first():
            assert "torch" not in sys.modules

        def test_gradients(pipekit_parity):
            verdict = pipekit_parity({trainer("Right")!r}, processes=1)
            assert verdict.ok, verdict.text
            assert not verdict.classes
        """
    )
    installed = any(point.name == "pipekit" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "pipekit.pytest_plugin"]
    pytester.runpytest_subprocess(*plugin).assert_outcomes(passed=2)
