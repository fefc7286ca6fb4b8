"""Parts that are no parts: every way of making some, and what the attack would say of a fault."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.attacks import disks, parts
from pipekit import Pipeline
from pipekit.engine.checkpoints import files


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> parts.Trainings:
    return parts.Trainings(tmp_path_factory.mktemp("trainings"))


@pytest.mark.parametrize("way", parts.WAYS)
def test_none_passes_for_the_real_one(way: str, trainings: parts.Trainings) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is going
        row = trainings.tried(way, 0)
    assert row.failure == "", row


def test_damage_that_nobody_notices_is_a_fault(
    trainings: parts.Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.PartFile, "sound", True)
    assert trainings.tried("cut short", 0).failure.startswith("refused by name: ")


def test_parts_that_nobody_compares_are_a_fault(
    trainings: parts.Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipekit.engine.checkpoints.resume_point.require_alike", lambda *_: None)
    row = trainings.tried("part of another training, attempt forged", 0)
    assert row.failure.startswith("trained")


LOAD = torch.load


def trusting(*given: Any, **how: Any) -> Any:
    return LOAD(*given, **{**how, "weights_only": False})


def test_code_that_is_executed_is_a_fault(
    trainings: parts.Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", trusting)
    assert "executed" in {trainings.tried("code", seed).failure for seed in range(6)}


def test_a_write_that_fails_without_a_name_is_a_fault(
    trainings: parts.Trainings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    errors = [OSError(28, "No space left on device")]

    def train(*given: Any, **how: Any) -> Any:
        if errors:
            raise errors.pop()
        return original(*given, **how)

    original = Pipeline.train
    monkeypatch.setattr(Pipeline, "train", train)
    assert "No space left" in disks.filled(tmp_path, trainings._bits).failure


def test_full_disks() -> None:
    for row in disks.attack(2, 0):
        if row.outcome == "not tried":
            pytest.skip(row.said)
        assert row.failure == "", row
