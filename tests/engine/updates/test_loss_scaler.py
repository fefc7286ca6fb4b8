"""The loss scale: PyTorch's rule, also where weights, and so the scale of a loss, come late."""

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
