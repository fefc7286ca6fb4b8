"""The loss scale: PyTorch's rule, also where weights, and so the scale of a loss, come late."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipekit import LossScale
from pipekit.engine.updates.loss_scaler import LossScaler
from pipekit.schedules.lowering.recurring import Recurring


def scaler(rule: LossScale, versions: list[int]) -> LossScaler:
    made = LossScaler(rule)
    made.begin(Recurring(tuple(versions)))
    return made


def end(scaler: LossScaler) -> tuple[float, int]:
    """From where the next run goes on: the scale, and good updates since it changed."""
    state = scaler.state_dict()
    return state["after"][-1], state["good"]


@given(finite=st.lists(st.booleans(), max_size=12), interval=st.integers(1, 4))
def test_it_is_grad_scaler_where_every_loss_reads_the_newest_weights(
    finite: list[bool], interval: int
) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    theirs = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=interval)
    ours = scaler(LossScale(2.0**10, interval=interval), list(range(len(finite))))
    for update, fine in enumerate(finite, start=1):
        assert ours.scale(update) == theirs.get_scale()
        theirs.scale(weight.sum())  # it wants to have seen a loss
        weight.grad = torch.tensor([1.0 if fine else math.inf])
        theirs.step(optimizer)
        theirs.update()
        ours.note(update, fine)
    assert ours.skipped == [u for u, fine in enumerate(finite, start=1) if not fine]


def test_updates_in_flight_with_one_scale_lower_it_once() -> None:
    """PipeDream-2BW: update t + 1 reads W(t - 1)."""
    late = scaler(LossScale(64.0), [0, 0, 1, 2, 3])
    for update, fine in enumerate([False, False, True, False, True], start=1):
        late.note(update, fine)
    assert late.scales == [64.0, 64.0, 32.0, 32.0, 32.0]
    assert end(late) == (16.0, 1)


def test_a_good_update_of_an_older_scale_counts_too() -> None:
    late = scaler(LossScale(64.0, interval=2), [0, 0, 1, 2])
    for update, fine in enumerate([False, True, True, True], start=1):
        late.note(update, fine)
    assert end(late) == (64.0, 1)


def test_it_neither_overflows_nor_vanishes() -> None:
    large = scaler(LossScale(2.0**127, interval=1), [0])
    large.note(1, finite=True)
    assert end(large) == (2.0**127, 0)
    small = scaler(LossScale(2.0**-126), [0])
    small.note(1, finite=False)
    assert end(small) == (2.0**-126, 0)


@given(finite=st.lists(st.booleans(), max_size=9), stop=st.integers(0, 9))
def test_another_goes_on_where_it_was(finite: list[bool], stop: int) -> None:
    rule = LossScale(64.0, interval=3)
    whole = scaler(rule, list(range(len(finite))))
    first, second = scaler(rule, list(range(len(finite)))), LossScaler(rule)
    for update, fine in enumerate(finite, start=1):
        whole.note(update, fine)
    for update, fine in enumerate(finite[:stop], start=1):
        first.note(update, fine)
    second.load_state_dict(first.state_dict())
    second.begin(Recurring(tuple(range(len(finite)))))
    for update, fine in enumerate(finite[stop:], start=1):
        second.note(update, fine)
    assert end(second) == end(whole)
    assert first.scales + second.scales == whole.scales


@given(finite=st.lists(st.booleans(), max_size=9), stop=st.integers(0, 9))
def test_a_run_that_is_taken_up_again_has_all_that_was_noted_in_it(
    finite: list[bool], stop: int
) -> None:
    versions = [max(0, update - 1) for update in range(len(finite))]
    whole, first, second = (scaler(LossScale(64.0, interval=3), versions) for _ in range(3))
    for each, noted in ((whole, finite), (first, finite[:stop])):
        for update, fine in enumerate(noted, start=1):
            each.note(update, fine)
    second.load_state_dict(first.state_dict())
    for update in range(stop + 1, len(finite) + 1):
        second.note(update, finite[update - 1])
    assert second.state_dict() == whole.state_dict()
    assert (second.scales, second.skipped) == (whole.scales, whole.skipped)
