"""The sweep: rates are extended at the border, for all arms; what is done is not done again."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import study
from experiments.staleness import sweep
from experiments.staleness.proxies import PROXIES
from experiments.staleness.sweep import Sweep, parse_arms
from experiments.staleness.trainings import StaleTraining, train


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[StaleTraining]:
    """Replace trainings by a formula, and return those that were asked for, in order."""
    asked: list[StaleTraining] = []

    def course(case: StaleTraining) -> study.Course:
        best = {"flush": 2**-8, "2bw": 2**-11}[case.method]
        ends = [1 + abs(case.rate / best - 1)] * 11
        names = ("method", "stages", "optimizer", "rate", "seed")
        about = {"proxy": case.proxy.setting} | {name: getattr(case, name) for name in names}
        origin = {"case": about, "by": "oracle", "commit": "none"}
        return study.Course.of(origin, validation=ends, training=ends, cpu_s=ends)

    def courses(_: object, cases: list[StaleTraining]) -> list[study.Course]:
        asked.extend(case for case in cases if case not in asked)
        return [course(case) for case in cases]

    monkeypatch.setattr(study.Trainings, "courses", courses)
    return asked


def test_all_arms_try_the_same_rates_and_go_on_past_the_border(
    trained: list[StaleTraining], tmp_path: Path
) -> None:
    table = Sweep.of("images-small", "adamw", "2bw", seeds=3).run(tmp_path)
    tried = {
        method: sorted(
            {case.rate for case in trained if case.method == method and case.seed >= 100}
        )
        for method in ("flush", "2bw")
    }
    first = [2.0**-power for power in (10, 9, 8, 7, 6)]
    assert tried["flush"] == tried["2bw"] == [2**-12, 2**-11, *first]
    assert {case.seed for case in trained if case.seed >= 100} == {100, 101}
    judged = {(c.method, c.rate) for c in trained if c.seed < 100}
    assert judged == {("flush", 2**-8), ("2bw", 2**-11), ("2bw", 2**-8)}
    assert {case.seed for case in trained if case.seed < 100} == {0, 1, 2}
    assert len(table) == len(trained)


def test_an_arm_that_never_learns_is_not_tuned_for_ever(
    trained: list[StaleTraining], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MOST_RATES", 6)
    Sweep.of("images-small", "adamw", "2bw").run(tmp_path)
    assert len({case.rate for case in trained if case.method == "2bw" and case.seed >= 100}) == 6


def test_a_method_without_a_meaning_for_the_optimizer_is_left_out(
    trained: list[StaleTraining], tmp_path: Path
) -> None:
    Sweep.of("images-small", "muon", "2bw spectrain:4").run(tmp_path)
    assert {case.method for case in trained} == {"flush", "2bw"}


def test_real_trainings_are_kept_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = "experiments.study.trainings.side_by_side"  # and in no process of their own
    monkeypatch.setattr(here, lambda trainings: [each() for each in trainings])
    tiny = replace(PROXIES["images-small"], width=2, length=8, updates=10)
    cases = [StaleTraining(tiny, "2bw", 2, "sgd", rate, 0) for rate in (0.1, 1e9)]
    trainings = study.Trainings(train, tmp_path)
    first = sweep.table(trainings.courses(cases))
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    assert len(files) == 2
    assert first[sweep.FINAL].isna().to_list() == [False, True], "a diverged training is kept, too"
    assert sweep.table(trainings.courses(cases)).equals(first)
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}


def test_arms_are_methods_with_their_depth() -> None:
    assert parse_arms("2bw pipedream:4  flush") == (("2bw", 2), ("pipedream", 4), ("flush", 1))
    with pytest.raises(ValueError, match="unknown method 'pipedreem'"):
        parse_arms("pipedreem:4")
    with pytest.raises(ValueError, match="pipedream needs a depth: write pipedream:4"):
        parse_arms("pipedream")
    with pytest.raises(ValueError, match="proxy must be one of"):
        Sweep.of("resnet", "sgd", "2bw")
