"""Streams are queues."""

import pytest

from experiments.torchgpipe.ablation.streams import Copy, Issue, Pass, copying, overlap, run

F0, F1 = Pass("FORWARD", 0, 0), Pass("FORWARD", 1, 0)
COPY = Copy("activation", 0, 1, 0)
COMPUTE = ("compute", 0), ("compute", 1)


def test_a_kernel_begins_when_it_is_the_first_in_all_its_streams() -> None:
    trace = run(
        [
            Issue(Pass("FORWARD", 0, 0), 1, COMPUTE[:1]),
            Issue(Pass("FORWARD", 1, 9), 3, COMPUTE[1:]),
            Issue(COPY, 0.5, COMPUTE),
            Issue(Pass("FORWARD", 0, 1), 1, COMPUTE[:1]),
        ],
        "by hand",
        2,
    )
    assert trace.frame["start_s"].tolist() == [0, 3.5, 0]
    assert trace.transfers is not None
    assert trace.transfers["start_s"].tolist() == [3]
    assert trace.label == "simulated"


def test_a_kernel_waits_for_what_it_needs_in_any_stream() -> None:
    issues = [
        Issue(F0, 1, COMPUTE[:1]),
        Issue(COPY, 0.5, (("out", 0), ("in", 1)), (F0,)),
        Issue(F1, 1, COMPUTE[1:], (COPY, Copy("activation", 5, 1, 0))),
    ]
    assert run(issues, "by hand", 2).makespan_s == 2.5


def test_copies_overlap_with_what_their_devices_compute() -> None:
    issues = [
        Issue(F0, 1, COMPUTE[:1]),
        Issue(COPY, 1, (("out", 0), ("in", 1)), (F0,)),
        Issue(Pass("FORWARD", 0, 1), 0.5, COMPUTE[:1]),
        Issue(F1, 1, COMPUTE[1:], (COPY,)),
    ]
    trace = run(issues, "by hand", 2)
    assert copying(trace) == 1
    assert overlap(trace) == pytest.approx(0.25)  # device 0 half of the time, device 1 never
