"""What one changed thing makes of met and missed claims."""

from pathlib import Path

from pipekit.ledger import claims
from pipekit.ledger.outcomes import BROKEN, NEARED, STILL_MET, STILL_MISSED, TURNED
from pipekit.ledger.report.tables import changes, experiments

MISSED = "pipedream-table1-vgg16-8A-pp-speedup"  # 7.04, within 15 %
MET = "pipedream-table1-vgg16-4A-pp-speedup"  # 3.14, within 15 %


def cause(name: str, value: float) -> claims.Cause:
    return claims.Cause(name, value, "simulated", "otherwise")


def test_a_change_turns_misses_and_breaks_passes(tmp_path: Path) -> None:
    helps, near, harms, nothing = "free links", "fast links", "slow GPUs", "more memory"
    of_miss = [cause(helps, 7.0), cause(near, 4.0), cause(harms, 1.0), cause(nothing, 2.0)]
    of_pass = [cause(harms, 1.0), cause(nothing, 3.0)]
    claims.record(MISSED, 2.0, "simulated", results_dir=tmp_path, causes=of_miss)
    claims.record(MET, 3.1, "simulated", results_dir=tmp_path, causes=of_pass)
    claims.record("pipedream-batch-sizes", [1, 2, 3], "exact", results_dir=tmp_path)

    tried = experiments(claims.outcomes(tmp_path))
    becomes = tried.set_index(["claim", "cause"])["becomes"].to_dict()
    assert becomes == {
        (MISSED, helps): TURNED,
        (MISSED, near): NEARED,
        (MISSED, harms): STILL_MISSED,
        (MISSED, nothing): STILL_MISSED,
        (MET, harms): BROKEN,
        (MET, nothing): STILL_MET,
    }
    first = tried.set_index("claim").loc[MET].iloc[0]
    assert (first["instead"], first["ours"], first["changed"]) == ("otherwise", "3.1", "1")

    table = changes(tried).set_index("cause")
    assert table.index.tolist() == [helps, near, nothing, harms]
    assert table["net"].tolist() == [1, 0, 0, -1]
    assert table["claims"].tolist() == [1, 1, 2, 2]


def test_without_experiments_there_are_no_rows(tmp_path: Path) -> None:
    claims.record(MISSED, 2.0, "simulated", results_dir=tmp_path)
    tried = experiments(claims.outcomes(tmp_path))
    assert tried.empty
    assert changes(tried).empty
