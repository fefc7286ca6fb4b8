"""A rewrite of the notebooks keeps the claims: what counts as kept."""

from pathlib import Path

import pandas as pd
import pytest
import typer

from experiments.golden import GOLDEN, differences, frame, main, renewed, require_ended
from pipekit.ledger.batches import batch
from pipekit.ledger.claims import load


def claims(*rows: tuple[str, str, str]) -> pd.DataFrame:
    return pd.DataFrame([("a", *row) for row in rows], columns=["id", "outcome", "value", "label"])


@pytest.mark.parametrize(
    ("before", "now", "is_kept"),
    [
        (("pass", "1.0", "exact"), ("pass", "1.0", "exact"), True),
        (("pass", "1.0", "exact"), ("pass", "1.0000000001", "exact"), True),
        (("pass", "1.0", "exact"), ("pass", "1.00000001", "exact"), False),
        (("pass", "[2.9e-16, 1]", "exact"), ("pass", "[3e-16, 1]", "exact"), True),
        (("pass", "[1, 2]", "simulated"), ("pass", "[1, 3]", "simulated"), False),
        (("pass", '"2-1-1"', "exact"), ("pass", '"3-1"', "exact"), False),
        (("pass", "1.0", "exact"), ("miss", "1.0", "exact"), False),
        (("pass", "1.0", "exact"), ("pass", "1.0", "simulated"), False),
        (("pass", "1.0", "measured"), ("pass", "1.5", "measured"), True),
        (("pass", "1.0", "emulated"), ("undecided", "1.5", "emulated"), True),
        (("pass", "1.0", "emulated"), ("pass", "1.5", "simulated"), True),
        (("pass", "1.0", "emulated"), ("miss", "1.5", "simulated"), False),
        (("miss", "1.0", "measured"), ("pass", "1.5", "measured"), False),
        (("preset", "1.0", "exact"), ("preset", "", ""), True),
    ],
)
def test_claims_keep_their_values_or_their_outcomes(
    before: tuple[str, str, str], now: tuple[str, str, str], is_kept: bool
) -> None:
    assert (differences(claims(before), claims(now)) == []) == is_kept


def test_a_simulated_value_with_repeats_may_vary() -> None:
    both = claims(("miss", "0.609", "simulated")), claims(("miss", "0.605", "simulated"))
    assert (len(differences(*both)), differences(*both, varying={"a"})) == (1, [])


def test_a_run_of_some_notebooks_renews_only_what_it_recorded() -> None:
    columns = ["id", "outcome", "value", "label"]
    first, second, third, fourth = list(load())[:4]
    golden = [(first, "preset", "1", "exact"), (third, "miss", "3", "exact")]
    run = [(fourth, "pass", "4", "exact"), (third, "pass", "2", "exact")]
    run += [(first, "preset", "", ""), (second, "preset", "", "")]
    after = renewed(pd.DataFrame(golden, columns=columns), pd.DataFrame(run, columns=columns))
    assert [*after.itertuples(index=False, name=None)] == [golden[0], run[3], run[1], run[0]]


def test_a_run_without_all_its_notebooks_is_not_judged() -> None:
    ended = [{"name": "one", "error": None}, {"name": "two", "error": "ValueError"}]
    about = {"parameters": {"one": {}, "two": {}, "three": {}}, "notebooks": ended}
    with pytest.raises(typer.BadParameter, match=r"two, three of .* did not run to the end"):
        require_ended(Path("run"), about)


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="is not a run"):
        main(tmp_path)
    for folder in (tmp_path, inner := tmp_path / "notebook"):  # of one notebook's results
        folder.mkdir(exist_ok=True)
        (folder / "provenance.json").write_text("{}")
    with pytest.raises(typer.BadParameter, match="name a folder of results/runs itself"):
        main(inner)


def test_the_golden_file_has_every_claim_of_the_ledger() -> None:
    assert set(pd.read_csv(GOLDEN)["id"]) == set(load())


@pytest.mark.long
def test_a_fresh_quick_run_finds_what_the_golden_file_has(repository: Path, tmp_path: Path) -> None:
    """A short notebook without a clock in its claims; `make papers` compares all by hand."""
    experiments = repository / "experiments/megatron.yaml"
    result = batch.run(experiments, only=["megatron-interleaved"], results=tmp_path, quiet=True)
    assert not result.failed
    found = frame(result.folder)
    assert (found["label"] != "").sum() > 10
    assert differences(pd.read_csv(GOLDEN, keep_default_na=False), found) == []
