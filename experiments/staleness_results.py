"""Gather the sweep's trainings for the repository: small tables, and where they come from.

    python experiments/staleness_results.py results/runs/staleness_trainings

reads the record of every training that is done and writes results/reference/staleness/: all of them
(trainings.csv), how each method ended (summary.csv), the papers' claims beside it (claims.csv),
what each mitigation earns (mitigations.csv), when each is at a loss on the papers' clusters
(time_to_loss.csv), and all of that in sentences (findings.csv).
"""

import argparse
import json
from pathlib import Path

import pandas as pd

from experiments.staleness import claims, comparison, figures, findings, speed
from experiments.staleness.sweep import ARM, VALIDATIONS, table
from pipekit.host.provenance import provenance, write

DIGITS = 6
"""Of a loss; what differs less is no difference between seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainings", type=Path, help="the folder of the records")
    parser.add_argument("--output", type=Path, default=Path("results/reference/staleness"))
    given = parser.parse_args()
    records = [json.loads(file.read_text()) for file in sorted(given.trainings.glob("*.json"))]
    if not records:
        parser.error(f"{given.trainings} has no trainings: run experiments/staleness.yaml first")
    trainings = table(records).sort_values([*ARM, "rate", "seed"], kind="stable")
    origins = [record["provenance"] for record in records]
    write(
        given.output / "provenance.json",
        provenance(
            "measured",
            trainings=len(records),
            cpu_hours=round(float(trainings["cpu_s"].sum()) / 3600, 3),
            first_utc=min(origin["utc"] for origin in origins),
            last_utc=max(origin["utc"] for origin in origins),
            trained_at={key: sorted({str(o[key]) for o in origins}) for key in ("commit", "torch")},
            data=sorted({origin["data"] for origin in origins}),
        ),
    )
    losses = [*VALIDATIONS, "training"]
    trainings[losses] = trainings[losses].round(DIGITS)
    trainings.drop(columns="commit").to_csv(given.output / "trainings.csv", index=False)
    kept = comparison.load(given.output / "trainings.csv")
    summary = comparison.summary(kept)
    names = summary[["proxy", "optimizer", "arm", "at"]].agg(" ".join, axis=1)
    summary.insert(0, "name", names.str.replace(",", ""))
    said = findings.sentences(kept)
    seconds = speed.update_seconds(speed.on_paper_cluster, kept)
    tables: dict[str, pd.DataFrame] = {
        "summary": summary,
        "claims": claims.verdicts(kept),
        "mitigations": findings.mitigations(kept),
        "time_to_loss": figures.time_to_loss(kept, seconds),
        "findings": said,
    }
    for name, each in tables.items():
        each.round(DIGITS).to_csv(given.output / f"{name}.csv", index=False)
    print(findings.counts(kept), *said["text"], sep="\n")


if __name__ == "__main__":
    main()
