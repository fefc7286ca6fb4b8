import pytest

from pipekit import schedules
from pipekit.plots import in_flight, in_flight_table
from pipekit.schedules import Schedule


def test_the_table_says_what_holds_from_each_slot_on() -> None:
    # time     | 1  2  3  4  5  6  7  8  9
    # worker 0 | F0 F1 .  B0 -  .  B1 -^
    table = in_flight_table(schedules.flush(2, 2).take(1))
    worker_0 = table[table["worker"] == 0]
    assert worker_0[["slot", "in_flight"]].to_numpy().tolist() == [
        [0, 0],
        [1, 1],
        [2, 2],
        [6, 1],
        [9, 0],
    ]
    assert (worker_0["weight_slots"] == 1).all()


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.gpipe(4, 8).take(1),
        schedules.flush(4, 8).take(1),
        schedules.pipedream(4).take(12),
        schedules.two_bw(3, 4).take(4),
        schedules.interleaved(4, 4, workers=2).take(1),
    ],
    ids=lambda schedule: schedule.name,
)
def test_peaks_are_those_of_the_proof(schedule: Schedule) -> None:
    report = schedules.check(schedule)
    peaks = in_flight_table(schedule).groupby("worker").max()
    assert tuple(peaks["weight_slots"]) == report.peak_versions
    assert tuple(peaks["in_flight"]) == report.peak_in_flight


def test_each_worker_has_two_lines_of_steps_to_the_end_of_the_schedule() -> None:
    figure = in_flight(schedules.two_bw(4, 4).take(4))
    assert len(figure.data) == 8
    assert {line.line.shape for line in figure.data} == {"hv"}
    assert {line.x[-1] for line in figure.data} == {57}
    assert [note.text for note in figure.layout.annotations] == [f"worker {w}" for w in range(4)]
