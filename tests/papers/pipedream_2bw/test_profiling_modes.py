from pipekit.papers.pipedream_2bw.profiling_modes import prediction_errors


def test_both_ways_predict_a_step() -> None:
    found = prediction_errors(
        layers=2, hidden=8, heads=2, vocabulary=16, tokens=4, rows=1, repeats=1
    )
    assert min(found) >= 0
    assert found.profiling_s > 0
