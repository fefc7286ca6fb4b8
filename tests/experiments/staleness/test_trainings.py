"""Trainings of the sweep: the cheap way and the engine's give the same bits."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments.staleness.methods import BSP, METHODS, OPTIMIZERS
from experiments.staleness.proxies import PROXIES
from experiments.staleness.trainings import ENGINE, ORACLE, POINTS, StaleTraining, train
from pipekit import oracle

TINY = replace(PROXIES["images-small"], width=2, length=8, updates=12)
DEEP = 4
WIDE = replace(TINY, batch_rows=DEEP * TINY.batch_rows, updates=TINY.updates // DEEP)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let operators have one thread, as in a sweep: over how many a sum is split rounds it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the engine's, even with one worker
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def case(method: str, optimizer: str = "adamw") -> StaleTraining:
    return StaleTraining(TINY, method, METHODS[method].depth(DEEP), optimizer, 2**-7, seed=3)


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [("paci", "sgd"), ("pipedream", "muon"), ("no-stashing", "rotated-adam")],
)
def test_oracle_and_engine_give_the_same_bits(method: str, optimizer: str) -> None:
    by_oracle = train(case(method, optimizer), ORACLE)
    by_engine = train(case(method, optimizer), ENGINE)
    for what in "training", "validation":
        assert by_oracle.points[what] == by_engine.points[what]
    expected = [TINY.updates * point // POINTS for point in range(POINTS + 1)]
    assert by_oracle.points["updates"] == expected


def test_an_update_of_data_parallelism_has_a_minibatch_of_each_worker() -> None:
    course = train(case(BSP, "sgd"), ORACLE)
    assert course.points["updates"][-1] == TINY.updates // DEEP
    assert (
        course.points["validation"]
        == train(replace(case("flush", "sgd"), proxy=WIDE)).points["validation"]
    )


def test_a_course_has_the_mean_loss_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def twelve(model: torch.nn.Module, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(losses=[*range(12)], weights=[model.state_dict()] * 13)

    monkeypatch.setattr(oracle, "train", twelve)
    course = train(case("2bw"), ORACLE)
    assert course.points["updates"] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]
    assert course.points["training"] == [None, 0, 1, 2, 3, 4.5, 6, 7, 8, 9, 10.5]


@pytest.mark.long
def test_methods_and_optimizers_are_not_one_another() -> None:
    """A sweep in which two names train alike would compare nothing."""
    everything = [(name, "adamw") for name in METHODS] + [("flush", name) for name in OPTIMIZERS]
    short, cases = replace(TINY, updates=6), [case(*each) for each in dict.fromkeys(everything)]
    found = {str(train(replace(each, proxy=short)).points["training"]) for each in cases}
    assert len(found) == len(cases)


def test_the_engine_trains_what_the_oracle_cannot_keep() -> None:
    assert case("2bw").cheaper == ORACLE
    assert case("gap-aware").cheaper == ENGINE
    assert StaleTraining(PROXIES["gpt-large"], "2bw", 2, "adamw", 0.01, 0).cheaper == ENGINE
    with pytest.raises(ValueError, match="gap-aware is trained by the engine only"):
        train(case("gap-aware"), ORACLE)


def test_a_diverged_training_is_kept_as_such() -> None:
    record = train(replace(case("no-stashing", "sgd"), rate=1e6))
    assert record.points["validation"][-1] is None
