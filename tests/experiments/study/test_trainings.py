"""Trainings that are kept, and what they come to over the seeds."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from experiments.study.trainings import Course, Trainings, each_seed, over_seeds, reached
from tests.hostile import damaged_json, read_or_refuse


@dataclass(frozen=True)
class Setting:
    method: str
    seed: int
    fails: bool = False


@pytest.mark.slow
def test_what_is_done_is_kept_when_another_fails_and_not_trained_again(tmp_path: Path) -> None:
    def train(setting: Setting) -> Course:  # as in a notebook: no module has it
        if setting.fails:
            raise RuntimeError("out of memory")
        numbers = {"accuracy": [0.5, 0.75 + setting.seed], "loss": [math.inf, 2.0]}
        return Course.of({}, epoch=[0, 1], **numbers)

    trainings = Trainings(train, tmp_path / "new")
    a, b, c = Setting("a", 0), Setting("b, late", 1), Setting("c", 0, fails=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainings.run([a, b, c])
    kept = {path.name.rsplit("_", 1)[0] for path in trainings.folder.iterdir()}
    assert kept == {"a_0_False", "b--late_1_False"}
    trainings.file(a).write_text(Course.of({}, epoch=[0], accuracy=[0.1]).model_dump_json())
    frame = trainings.run([a, b])
    assert frame["accuracy"].tolist() == [0.1, 0.5, 1.75]
    assert frame["method"].tolist() == ["a", "b, late", "b, late"]
    assert frame["loss"].isna().tolist() == [True, True, False]


def untrained(setting: Setting) -> Course:
    raise AssertionError(f"{setting} is trained, though it has a file")


WHOLE = Course.of({"label": "measured"}, epoch=[0, 1], loss=[math.inf, 2.0]).model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        *("", WHOLE[: len(WHOLE) // 2], "null", "[]", "{}", '{"points": {}}'),
        WHOLE.replace("2.0", "NaN"),
        WHOLE.replace("2.0", "1e999"),
        WHOLE.replace(",2.0", ""),
        '{"points": {"epoch": []}}',
        '{"points": {"epoch": ["zero"]}}',
    ],
)
def test_a_training_that_was_cut_off_or_edited_is_named(tmp_path: Path, text: str) -> None:
    trainings = Trainings(untrained, tmp_path)
    trainings.file(Setting("a", 0)).write_text(text)
    with pytest.raises(ValueError, match=r"a_0_False.*is not a training, delete it to train it"):
        trainings.run([Setting("a", 0)])


@given(content=damaged_json(json.loads(WHOLE)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_a_training_or_refused(tmp_path: Path, content: bytes) -> None:
    trainings = Trainings(untrained, tmp_path)
    read_or_refuse(
        lambda _: trainings.run([Setting("a", 0)]), content, trainings.file(Setting("a", 0))
    )


def test_two_settings_have_two_files(tmp_path: Path) -> None:
    trainings = Trainings(untrained, tmp_path)
    assert trainings.file(Setting("a b", 0)) != trainings.file(Setting("a-b", 0))


def test_a_target_is_reached_between_two_times() -> None:
    assert reached([0.0, 0.5, 1.0], 0.75, [0, 2, 4]) == 3.0
    assert reached([0.8, 0.9], 0.75, [0, 1]) == 0
    assert reached([0.1, 0.2], 0.75, [0, 1]) == math.inf


def test_seeds_end_each_and_are_spread_together() -> None:
    rows = [("a", seed, epoch, epoch * (1 + seed)) for seed in (0, 1) for epoch in (0, 1, 2)]
    rows += [("b", 0, 0, 0), ("b", 0, 1, 1)]
    course = pd.DataFrame(rows, columns=["method", "seed", "epoch", "accuracy"])
    ends = each_seed(course, ["method", "seed"], target=2)
    assert ends["epochs"].tolist() == [2, 1, math.inf]
    assert ends["accuracy"].tolist() == [2, 4, 1]
    spread = over_seeds(ends, ["method"], ["epochs", "accuracy"]).set_index("method")
    assert spread["seeds"].tolist() == [2, 1]
    assert (spread["epochs"]["a"], spread["accuracy"]["a"]) == (1.5, 3)
    assert spread["accuracy_std"]["a"] == pytest.approx(math.sqrt(2))
    assert spread["epochs"]["b"] == math.inf
    assert math.isnan(spread["epochs_std"]["b"])
