"""Simulated bytes against the papers' formulas and the schedule check's own counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipekit.plans import Plan, Recompute
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Schedule, check, flush, parse, pipedream, two_bw
from pipekit.simulation import simulate
from pipekit.traces.memory import Memory
from tests.schedules.strategies import training_methods

vectors = st.lists(st.integers(1, 4), min_size=1, max_size=4)
replicated = st.builds(
    lambda replicas, more: pipedream(replicas).take(max(replicas) + more),
    vectors,
    st.integers(0, 8),
)
W, A, I = 1000.0, 100.0, 10.0  # noqa: E741  a stage's weights, all its activations, its input


def profile(stages: int) -> Profile:
    """Equal stages of W bytes of weights that keep A bytes a microbatch, the input's I included."""
    layer = LayerProfile("layer", 1, 2, I, W, saved_bytes=A - I, saves_output=True)
    return Profile((layer,) * stages, input_bytes=I)


def memory(schedule: Schedule, recompute: Recompute = "never", states: float = 0) -> Memory:
    replicas = [len(workers) for workers in schedule.stage_workers]
    plan = Plan.by_hand([1] * schedule.stages, replicas=replicas, recompute=recompute)
    trace = simulate(schedule, profile(schedule.stages), plan, optimizer_states=states)
    assert trace.memory is not None
    return trace.memory


def peak(memory: Memory, part: str) -> list[float]:
    return [float(most) for most in memory.frame.groupby("worker")[part].max()]


def without_gradients(memory: Memory) -> list[float]:
    """Return each worker's most bytes as the paper counts them."""
    rest = memory.total - memory.frame["gradients"]
    return [float(most) for most in rest.groupby(memory.frame["worker"]).max()]


# --- PipeDream-2BW, section 3 ---------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(0, 6))
def test_recomputing_2bw_keeps_d_inputs_and_one_microbatch_whole(d: int, more: int) -> None:
    """2|W|/d + |A_total(b)|/d + d |A_input(b)| (section 3.1); the whole one's input is of the d."""
    found = memory(two_bw(d, d + more).take(4), "always")
    assert without_gradients(found)[0] == 2 * W + (A - I) + d * I


@given(training_methods | replicated)
def test_peaks_are_those_that_the_check_counts(schedule: Schedule) -> None:
    report, found = check(schedule), memory(schedule)
    assert peak(found, "activations") == [count * A for count in report.peak_in_flight]
    assert peak(found, "weights") == [count * W for count in report.peak_versions]


@given(training_methods | replicated, st.sampled_from(["never", "except_last", "always"]))
def test_what_is_kept_is_let_go_of(schedule: Schedule, recompute: Recompute) -> None:
    last = memory(schedule, recompute, states=2).frame.groupby("worker").last()
    assert last["activations"].eq(0).all()
    assert last["recompute"].eq(0).all()
    assert last["gradients"].eq(0).all()
    assert last["optimizer"].eq(2 * W).all()


def test_gradients_are_there_from_the_first_backward_to_the_update() -> None:
    frame = memory(flush(1, 2).take(2)).frame
    assert frame[["time_s", "gradients"]].to_numpy().tolist() == [
        [0, 0],
        [1, W - (A - I)],  # the first backward: they come as the activations go
        [3, W],
        [6, 0],
        [7, W - (A - I)],
        [9, W],
        [12, 0],
    ]


@pytest.mark.parametrize(("saves_output", "kept"), [(True, 5 + 80), (False, 5 + 80 + 7)])
def test_the_output_is_kept_if_a_layer_needs_it_or_not(saves_output: bool, kept: float) -> None:
    layer = LayerProfile("layer", 1, 1, 7, 0, saved_bytes=80, saves_output=saves_output)
    trace = simulate(flush(1, 1).take(1), Profile((layer,), input_bytes=5))
    assert trace.memory is not None
    assert peak(trace.memory, "activations") == [kept]


def test_buffers_are_shared_by_all_weight_versions() -> None:
    layer = LayerProfile("layer", 1, 1, parameter_bytes=100, buffer_bytes=3)
    trace = simulate(two_bw(1, 1).take(3), Profile((layer,)))
    assert trace.memory is not None
    assert peak(trace.memory, "weights") == [203]


def test_two_stages_on_one_worker_are_counted_together() -> None:
    schedule = parse("worker 0 | F0 F1 F0@1 F1@1 B0@1^@1 B1@1^@1 B0^ B1^")
    found = memory(schedule)
    assert peak(found, "weights") == [4 * W], "each stage's two buffers stay, as in the engine"
    assert peak(found, "activations") == [4 * A]


def test_gradients_come_layer_by_layer_as_activations_go() -> None:
    """Backward of two layers: first 150 of gradients take the place of 100 of activations."""
    layers = [
        LayerProfile("layer", 1, 1, 0, size, saved_bytes=100, saves_output=True)
        for size in (10, 150)
    ]
    trace = simulate(flush(1, 1).take(1), Profile(tuple(layers)), Plan.by_hand([2]))
    assert trace.memory is not None
    assert trace.memory.peak_bytes == (160 + 100 + 150,)
    assert trace.memory.frame["gradients"].tolist() == [0, 50, 0]
