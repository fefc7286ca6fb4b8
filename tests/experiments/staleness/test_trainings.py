"""Proxies, trainings and the sweep: cut anywhere, the same bits by both ways, rates past the border."""

import math
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch

from experiments import study
from experiments.staleness import sweep
from experiments.staleness.methods import BSP, METHODS, OPTIMIZERS, MuonAndAdamW
from experiments.staleness.proxies import PARTS, PROXIES, Proxy, of_setting
from experiments.staleness.sweep import StaleTraining, parse_arms, train

IMAGES = PROXIES["images-small"]
TINY = replace(IMAGES, width=2, length=8, updates=12)
DEEP = 4
WIDE = replace(TINY, batch_rows=DEEP * TINY.batch_rows, updates=TINY.updates // DEEP)


def case(method: str, optimizer: str = "adamw") -> StaleTraining:
    return StaleTraining(TINY, method, METHODS[method].depth(DEEP), optimizer, 2**-7, seed=3)


def test_an_update_of_data_parallelism_has_a_minibatch_of_each_worker() -> None:
    course = train(case(BSP, "sgd"))
    assert course.points["updates"][-1] == TINY.updates // DEEP
    wide = train(replace(case("flush", "sgd"), proxy=WIDE))
    assert course.points["validation"] == wide.points["validation"]


def test_a_course_has_the_mean_loss_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def twelve(case: StaleTraining, model: torch.nn.Module, _: object) -> object:
        return [*range(12)], dict.fromkeys(range(13), model.state_dict())

    monkeypatch.setattr(sweep, "_trained", twelve)
    course = train(case("2bw"))
    assert course.points["updates"] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]
    assert course.points["training"] == [None, 0, 1, 2, 3, 4.5, 6, 7, 8, 9, 10.5]


@pytest.mark.long
def test_methods_and_optimizers_are_not_one_another() -> None:
    """A sweep in which two names train alike would compare nothing."""
    everything = [(name, "adamw") for name in METHODS] + [("flush", name) for name in OPTIMIZERS]
    short, cases = replace(TINY, updates=6), [case(*each) for each in dict.fromkeys(everything)]
    found = {str(train(replace(each, proxy=short)).points["training"]) for each in cases}
    assert len(found) == len(cases)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[StaleTraining]:
    """Replace trainings by a formula, and return those that were asked for, in order."""
    asked: list[StaleTraining] = []

    def course(case: StaleTraining) -> study.Course:
        best = {"flush": 2**-8, "2bw": 2**-11}[case.method]
        ends = [1 + abs(case.rate / best - 1)] * 11
        names = ("method", "stages", "optimizer", "rate", "seed")
        about = {"proxy": case.proxy.setting} | {name: getattr(case, name) for name in names}
        origin = {"case": about, "commit": "none"}
        return study.Course.of(origin, validation=ends, training=ends, cpu_s=ends)

    def courses(_: object, cases: list[StaleTraining]) -> list[study.Course]:
        asked.extend(case for case in cases if case not in asked)
        return [course(case) for case in cases]

    monkeypatch.setattr(study.Trainings, "courses", courses)
    return asked


def test_all_arms_try_the_same_rates_and_go_on_past_the_border(
    trained: list[StaleTraining], tmp_path: Path
) -> None:
    table = sweep.run(IMAGES, "adamw", "2bw", tmp_path, seeds=3)
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


@pytest.mark.parametrize("rates", [3, 4])
def test_as_many_rates_are_tried_first_as_asked(
    rates: int, trained: list[StaleTraining], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MOST_RATES", rates)
    sweep.run(IMAGES, "adamw", "2bw", tmp_path, rates=rates)
    tried = sorted({math.log2(case.rate) for case in trained if case.seed >= 100})
    assert len(tried) == rates
    assert tried[rates // 2] == -8


def test_an_arm_that_never_learns_is_not_tuned_for_ever(
    trained: list[StaleTraining], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "MOST_RATES", 6)
    sweep.run(IMAGES, "adamw", "2bw", tmp_path)
    assert len({case.rate for case in trained if case.method == "2bw" and case.seed >= 100}) == 6


def test_a_method_without_a_meaning_for_the_optimizer_is_left_out(
    trained: list[StaleTraining], tmp_path: Path
) -> None:
    sweep.run(IMAGES, "muon", "2bw spectrain:4", tmp_path)
    assert {case.method for case in trained} == {"flush", "2bw"}


def test_real_trainings_are_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = "experiments.study.trainings.side_by_side"  # and in no process of their own
    monkeypatch.setattr(here, lambda trainings: [each() for each in trainings])
    tiny = replace(TINY, updates=10)
    cases = [StaleTraining(tiny, "2bw", 2, "sgd", rate, 0) for rate in (0.1, 1e9)]
    kept = study.Trainings(train, tmp_path)
    first = sweep.table(kept.courses(cases))
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}
    assert len(files) == 2
    assert first[sweep.FINAL].isna().to_list() == [False, True], "a diverged training is kept, too"
    assert sweep.table(kept.courses(cases)).equals(first)
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.json")}


def test_arms_are_methods_with_their_depth(tmp_path: Path) -> None:
    assert parse_arms("2bw pipedream:4  flush") == (("2bw", 2), ("pipedream", 4), ("flush", 1))
    with pytest.raises(ValueError, match="unknown method 'pipedreem'"):
        parse_arms("pipedreem:4")
    with pytest.raises(ValueError, match="pipedream needs a depth: write pipedream:4"):
        parse_arms("pipedream")
    with pytest.raises(ValueError, match="use 1 to 8 stages, not 9"):
        sweep.run(IMAGES, "sgd", "2bw pipedream:9", tmp_path)


SMALL = [proxy for proxy in PROXIES.values() if proxy.size in ("small", "long")]


def test_a_setting_tells_trainings_of_other_lengths_apart() -> None:
    large = PROXIES["gpt-large"]
    short = replace(large, updates=200)
    assert (large.setting, short.setting) == ("gpt-large", "gpt-large-200")
    assert of_setting("gpt-large") == large
    assert of_setting("gpt-large-200") == short
    with pytest.raises(ValueError, match="proxy must be one of"):
        of_setting("gpt-200")
    assert short.description == "7,603,200 parameters, 200 updates, 409,600 bytes seen"


@pytest.mark.parametrize("proxy", PROXIES.values(), ids=lambda proxy: proxy.name)
def test_each_stage_has_weights_at_each_depth(proxy: Proxy) -> None:
    with torch.device("meta"):
        model = proxy.build(seed=0)
    for stages in range(1, PARTS + 1):
        balance = proxy.balance(stages)
        assert sum(balance) == len(model)
        stops = [*accumulate(balance)]
        for start, stop in pairwise([0, *stops]):
            assert list(model[start:stop].parameters())
    with pytest.raises(ValueError, match="use 1 to 8 stages, not 9"):
        proxy.balance(9)


@pytest.mark.parametrize("proxy", SMALL, ids=lambda proxy: proxy.name)
def test_hidden_matrices_are_muons_and_ends_are_not(proxy: Proxy) -> None:
    model = proxy.build(seed=0)
    muon, adamw = MuonAndAdamW(list(model.parameters()), 0.01, proxy.ends).param_groups
    assert all(p.dim() == 2 and p.shape[0] % proxy.width == 0 for p in muon["params"])
    ends = {id(p) for layer in (model[0], model[-1]) for p in layer.parameters()}
    assert ends <= {id(p) for p in adamw["params"]}
    blocks = {"gpt": 4 * 6, "bert": 4 * 6 + 1, "images": 3}
    assert len(muon["params"]) == blocks[proxy.kind]
