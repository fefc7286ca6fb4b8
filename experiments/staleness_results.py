"""Gather the sweep's trainings for the repository: small tables, and where they come from.

    python experiments/staleness_results.py results/runs/staleness_trainings

writes results/reference/staleness/: all trainings (trainings.csv), how each method ended
(summary.csv), the papers' claims by setting (claims.csv) and together (findings.csv), and what each
mitigation earns (mitigations.csv).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.staleness import claims, comparison
from experiments.staleness.sweep import ARM, VALIDATIONS, table
from experiments.study.trainings import Course
from pipekit.host.provenance import provenance, write
from pipekit.reading import read_json

DIGITS = 6  # of a loss; what differs less is no difference between seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainings", type=Path, help="the folder of the records")
    parser.add_argument("--output", type=Path, default=Path("results/reference/staleness"))
    parser.add_argument("--add", action="store_true", help="to the trainings of the output")
    parser.add_argument("--load", default="", help="the host's load meanwhile, in words")
    given = parser.parse_args()
    files = sorted(given.trainings.glob("*.json"))
    courses = [read_json(file, Course, "a training") for file in files]
    if not courses:
        parser.error(f"{given.trainings} has no trainings: run experiments/staleness.yaml first")
    file, about = given.output / "trainings.csv", given.output / "provenance.json"
    trainings = table(courses).drop(columns="commit")
    sets: list[dict[str, Any]] = []
    if given.add:
        trainings = pd.concat([pd.read_csv(file), trainings])
        sets = json.loads(about.read_text(encoding="utf-8"))["sets"]
    trainings = trainings.sort_values([*ARM, "rate", "seed"], kind="stable")
    losses = [*VALIDATIONS, "training"]
    trainings[losses] = trainings[losses].round(DIGITS)
    trainings.to_csv(file, index=False)
    kept = comparison.load(file)
    hours = round(float(kept["cpu_s"].sum()) / 3600, 3)
    sets.append(origin(courses) | {"load": given.load})
    write(about, provenance("measured", trainings=len(kept), cpu_hours=hours, sets=sets))
    found = tables(kept)
    for name, each in found.items():
        each.round(DIGITS).to_csv(given.output / f"{name}.csv", index=False)
    print(claims.counts(kept), found["findings"].to_string(index=False), sep="\n")


def origin(courses: list[Course]) -> dict[str, Any]:
    """Return when, from which commits and data trainings come."""
    known = [course.provenance for course in courses]
    return {
        "first_utc": min(each["utc"] for each in known),
        "last_utc": max(each["utc"] for each in known),
        "trained_at": {key: sorted({str(o[key]) for o in known}) for key in ("commit", "torch")},
        "data": sorted({each["data"] for each in known}),
    }


def tables(trainings: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is told of the trainings, by the file's name."""
    summary = comparison.summary(trainings)
    names = summary[["proxy", "optimizer", "arm", "at"]].agg(" ".join, axis=1)
    summary.insert(0, "name", names.str.replace(",", ""))
    verdicts = claims.verdicts(trainings)
    found = {"summary": summary, "claims": verdicts, "findings": claims.findings(verdicts)}
    return found | {"mitigations": claims.mitigations(trainings)}


if __name__ == "__main__":
    main()
