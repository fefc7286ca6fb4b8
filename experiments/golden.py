"""Hold a run of the papers' notebooks against the golden file, claim by claim.

    python -m experiments.golden results/runs/NAME           # compare
    python -m experiments.golden results/runs/NAME --add     # renew this run's claims in it

The golden file, results/reference/papers/claims.csv, has the outcome, value and label of each claim
in one whole run of `make papers`; beside it stand records, scores, origin, and what notebooks take.
A rewrite of the notebooks' code keeps the outcomes of claims, and the values of those labelled
exact, simulated or paper (numbers but for rounding); one that is emulated, measured or has repeats,
say of seeds, may be undecided once.  The script exits with 1 if any claim differs.
"""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from pipekit.host import provenance
from pipekit.ledger.batches.runs import RECORD
from pipekit.ledger.claims import FILE, load, outcomes
from pipekit.ledger.criteria import evaluate
from pipekit.ledger.outcomes import Status
from pipekit.ledger.report.printed import cells
from pipekit.ledger.report.tables import kinds, scores

GOLDEN = Path("results/reference/papers/claims.csv")
BY_VALUE = {"exact", "simulated", "paper"}


def main(
    run: Annotated[Path, typer.Argument(help="the run's folder, or one of a few notebooks")],
    add: Annotated[bool, typer.Option(help="renew the claims that this run recorded")] = False,
    load: Annotated[str, typer.Option(help="of a whole run: the host's load, in words")] = "",
) -> None:
    if not (run / RECORD).exists() or (run.parent / RECORD).exists():
        raise typer.BadParameter(f"{run} is not a run: name a folder of results/runs itself")
    about = json.loads((run / RECORD).read_text(encoding="utf-8"))
    require_ended(run, about)
    known, found = pd.read_csv(GOLDEN, keep_default_na=False), frame(run)
    if not add:
        varying = {each.claim.id for each in outcomes(run) if each.record and each.record.repeats}
        lines = differences(known, found, varying)
        recorded, every = ((each["label"] != "").sum() for each in (found, known))
        print(
            *lines, f"{recorded} claims recorded of {every}, {len(lines)} unlike {GOLDEN}", sep="\n"
        )
        sys.exit(bool(lines))
    records = "".join(path.read_text("utf-8") for path in sorted(run.rglob(FILE)))
    columns = ["name", "seconds", "memory_gb", "disk_mb"]
    takes = pd.DataFrame(about["notebooks"]).reindex(columns=columns).assign(cpu=about["cpu"])
    beside = GOLDEN.parent
    if load:
        facts = {key: about[key] for key in ("utc", "commit", "cpu", "cores", "python", "torch")}
        facts |= {"claims": len(found), "load": load, "command": "make papers"}
        provenance.write(beside / RECORD, facts)
    anew = {json.loads(line)["id"] for line in records.splitlines()}
    kept = (beside / FILE).read_text("utf-8").splitlines(keepends=True)
    records = "".join(line for line in kept if json.loads(line)["id"] not in anew) + records
    (beside / FILE).write_text(records, encoding="utf-8")
    renewed(known, found).to_csv(GOLDEN, index=False)
    usual = pd.read_csv(beside / "notebooks.csv")  # of other experiments' notebooks, too
    takes = pd.concat([usual, takes]).drop_duplicates("name", keep="last")
    takes.to_csv(beside / "notebooks.csv", index=False)
    judged = outcomes(beside)
    scores(judged).to_csv(beside / "scores.csv", index=False)
    kinds(judged).to_csv(beside / "kinds.csv", index=False)
    cells(judged).to_csv(beside / "printed.csv", index=False)


def require_ended(run: Path, about: Mapping[str, Any]) -> None:
    """Refuse a run, given its record, of which a notebook has no result."""
    ended = {each["name"] for each in about["notebooks"] if each["error"] is None}
    if left := [name for name in about["parameters"] if name not in ended]:
        raise typer.BadParameter(
            f"{', '.join(left)} of {run} did not run to the end: continue it by 'pipekit run "
            f"--resume', or look at their logs there"
        )


def renewed(golden: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the golden file with what a run recorded in place of its own, in ledger's order."""
    recorded = (found["label"] != "") | ~found["id"].isin(golden["id"])
    both = pd.concat([golden, found[recorded]]).drop_duplicates("id", keep="last").set_index("id")
    return both.loc[[id for id in load() if id in both.index]].reset_index()


def frame(run: Path) -> pd.DataFrame:
    """Return id, outcome, value as JSON and label of each claim that a run recorded or presets."""
    rows = [
        (
            each.claim.id,
            each.status.value,
            "" if each.record is None else json.dumps(each.record.value),
            "" if each.record is None else each.record.label,
        )
        for each in outcomes(run)
        if each.record is not None or each.status is not Status.NOT_RUN
    ]
    return pd.DataFrame(rows, columns=["id", "outcome", "value", "label"])


def differences(
    golden: pd.DataFrame, found: pd.DataFrame, varying: Collection[str] = ()
) -> list[str]:
    """Return a sentence for each claim that was recorded now and is not the same.

    Of those ``varying`` from run to run the outcome counts, whatever their label, and of those of
    which an emulation did not count in one of the runs, so that its simulation stands in.
    """
    both = golden.merge(found[found["label"] != ""], on="id", suffixes=("", "_now"))
    told = []
    for row in both.itertuples():
        is_kept = row.outcome == row.outcome_now
        stands_in = {row.label, row.label_now} == {"emulated", "simulated"}
        if row.label in BY_VALUE and not stands_in and row.id not in varying:
            is_kept = is_kept and same(row.value, row.value_now)
        else:
            is_kept = is_kept or "undecided" in (row.outcome, row.outcome_now)
        if not is_kept or (row.label != row.label_now and not stands_in):
            now = f"{row.label_now} {row.outcome_now} {row.value_now}"
            told.append(f"{row.id}: {now}, was {row.label} {row.outcome} {row.value}")
    return told


def same(one: str, other: str) -> bool:
    """Return whether two values, as JSON, are equal, numbers but for the rounding of floats."""
    if one == other or not (one and other):
        return one == other
    return bool(evaluate("equal", json.loads(other), json.loads(one)).passed)


if __name__ == "__main__":
    typer.run(main)
