from experiments.pipedream.staleness import versions as staleness
from pipekit import schedules
from pipekit.schedules import Op


def test_versions_of_the_papers_fifth_minibatch() -> None:
    stashed, naive = (schedules.pipedream(4, stashing=on).take(9) for on in (True, False))
    synced = schedules.pipedream(4, vertical_sync=True).take(9)
    assert staleness.versions(stashed, Op.BACKWARD, 4) == [1, 2, 3, 4]
    assert staleness.versions(naive, Op.BACKWARD, 4) == [4, 4, 4, 4]
    assert staleness.versions(synced, Op.FORWARD, 4) == [1, 1, 1, 1]
    assert staleness.interleaved_updates(naive, 4) == [3, 2, 1, 0]


def test_the_papers_minibatch_5_reads_what_section_34_says() -> None:
    fifth = staleness.versions_of_fifth()
    naive, between, stashed, synced = staleness.findings(fifth)
    assert naive.value is True
    assert between.value == [3, 2, 1, 0]
    assert stashed.value == [1, 2, 3, 4]
    assert synced.value == [1] * 8
    later = fifth.assign(**{})
    later[staleness.NAIVE, "backward"] = [1, 2, 3, 4]  # stashing's
    assert staleness.findings(later)[0].value is False


def test_with_stashing_a_backward_reads_its_forwards_version() -> None:
    assert staleness.same_version_both_ways()
    assert len(staleness.traces()) == 3
    assert set(staleness.events()["method"]) == set(staleness.PIPELINED)
