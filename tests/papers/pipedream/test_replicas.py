from pipekit.papers.pipedream.replicas import replica_vectors, with_links_as_stages


def test_replica_vectors_are_all_there() -> None:
    found = list(replica_vectors(8, 4))
    assert len(found) == len({tuple(vector) for vector in found}) == 35
    assert all(sum(vector) == 8 and min(vector) >= 1 for vector in found)
    assert [3, 2, 2, 1] in found


def test_a_link_is_one_more_stage() -> None:
    assert with_links_as_stages([1, 1, 1, 1]) == [7, 5, 3, 1]
    assert with_links_as_stages([2, 1, 1]) == [4, 3, 1]
