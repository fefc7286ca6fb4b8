"""The matrix of schedules, models and verdicts: ``python -m tests.parity.matrix FOLDER``.

Writes ``matrix.csv``, a row a schedule and a column a model, and ``matrix.json`` with every class
of fault and the versions.  A cell has "right", "stale" as the method is, the classes of fault, or
"refused" where the trainer raises an exception on this model.  Other methods of pipekit than flush
are judged on the first model: their tables differ, and their stages do not.

``counts.csv`` has torch's schedules on the first model by ranks, stages a rank and microbatches.
"""

import json
import sys
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from pipekit.names import METHODS
from pipekit.parity.adapter import RankRecord, train
from pipekit.parity.judge import judged
from pipekit.parity.suite import SUITE
from pipekit.parity.verdict import Verdict
from tests.engine.gloo import over_gloo
from tests.parity.adapters.deepspeed import DeepSpeed
from tests.parity.adapters.own import Module, engine_adapter
from tests.parity.adapters.torch_pipelining import SCHEDULES, SINGLE, V_SHAPED, torch_adapter

RANKS = 2
FIRST = ("dense", "tied")
PATIENCE = timedelta(seconds=60)
Jobs = dict[Any, tuple[Any, str]]
"""Adapters and models, by a key."""


def train_on(jobs: Jobs) -> dict[Any, RankRecord | str]:
    """Return this rank's record of each job, up to the first that fails, with its error."""
    torch.set_num_threads(1)
    if any(adapter.__module__.endswith("torch_pipelining") for adapter, _ in jobs.values()):
        dist.init_process_group("gloo", timeout=PATIENCE)
        dist.barrier()  # so that none leaves while another one still connects
    found: dict[Any, RankRecord | str] = {}
    for key, (adapter, model) in jobs.items():
        try:
            found[key] = train(adapter, model)
        except Exception as error:
            found[key] = f"{type(error).__name__}: {error}".splitlines()[0]
            if dist.is_initialized():
                dist.destroy_process_group()  # so that the other ranks do not wait
            break
    return found


def over_ranks(jobs: Jobs, ranks: int = RANKS) -> dict[Any, Verdict | str]:
    """Return the verdicts on some schedules of torch's, on so many ranks."""
    verdicts: dict[Any, Verdict | str] = {}
    while left := {key: job for key, job in jobs.items() if key not in verdicts}:
        found = over_gloo(partial(train_on, left), ranks)
        for key in dict.fromkeys(key for rank in found for key in rank):
            records = [rank[key] for rank in found if key in rank]
            errors = [record for record in records if isinstance(record, str)]
            if errors:
                verdicts[key] = min(errors, key=lambda error: "/gloo/" in error)
            else:
                verdicts[key] = judged(jobs[key][1], records)
    return verdicts


TRAINERS: dict[str, Any] = {
    **{f"torch {name}": torch_adapter(name) for name in SCHEDULES},
    **({"DeepSpeed": DeepSpeed} if find_spec("deepspeed") else {}),
    "pipekit flush": engine_adapter("flush"),
    "pipekit PipelinedModule": Module,
    **{f"pipekit {method}": engine_adapter(method) for method in METHODS if method != "flush"},
}
"""The adapters, of which pipekit's need no ranks; its other methods are behind all else."""
OF_ALL_MODELS = 1 + [*TRAINERS].index("pipekit PipelinedModule")


def verdicts_on(trainer: str, models: list[str]) -> dict[str, Verdict | str]:
    """Return the verdicts on a trainer on some models."""
    jobs: Jobs = {model: (TRAINERS[trainer], model) for model in models}
    if not trainer.startswith("pipekit"):
        return over_ranks(jobs)
    records = {model: train_on({model: job})[model] for model, job in jobs.items()}
    return {m: r if isinstance(r, str) else judged(m, [r]) for m, r in records.items()}


def matrix(folder: Path) -> None:
    """Write both files; cells that the JSON has are kept, a few models of all trainers come first."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "matrix.json"
    known = json.loads(target.read_text()) if target.exists() else {"verdicts": {}}
    named = ["torch", "pipekit", *(["deepspeed"] if find_spec("deepspeed") else [])]
    known["versions"] = known.get("versions", {}) | {name: version(name) for name in named}
    known["label"] = "measured"
    for chosen in (FIRST, tuple(SUITE)):
        for number, trainer in enumerate(TRAINERS):
            row = known["verdicts"].setdefault(trainer, {})
            models = SUITE if number < OF_ALL_MODELS else FIRST[:1]
            left = [model for model in models if model in chosen and model not in row]
            if left:
                found = verdicts_on(trainer, left)
                row |= {model: _as_json(verdict) for model, verdict in found.items()}
                print(trainer, {model: row[model]["cell"] for model in left}, flush=True)
                _write(folder, known)


def _as_json(verdict: Verdict | str) -> dict[str, Any]:
    if isinstance(verdict, str):
        return {"cell": "refused", "ok": False, "said": [verdict]}
    said = [str(finding) for finding in verdict.findings]
    return {"cell": ", ".join(verdict.classes) or "right", "ok": verdict.ok, "said": said}


def _write(folder: Path, known: dict[str, Any]) -> None:
    (folder / "matrix.json").write_text(json.dumps(known, indent=1) + "\n")
    rows = [
        {"trainer": trainer} | {model: found.get(model, {}).get("cell", "-") for model in SUITE}
        for trainer, found in known["verdicts"].items()
    ]
    pd.DataFrame(rows).to_csv(folder / "matrix.csv", index=False)


def counts(folder: Path) -> None:
    """Write the verdicts on torch's schedules by ranks, stages a rank and microbatches.

    Those that the file has are kept.
    """
    target = folder / "counts.csv"
    rows = pd.read_csv(target).fillna("").to_dict("records") if target.exists() else []
    done = {(row["ranks"], row["schedule"]) for row in rows}
    for ranks, schedule in product((2, 3, 4), SCHEDULES):
        if (ranks, schedule) in done:
            continue
        chunks = (1,) if schedule in SINGLE else (2,) if schedule in V_SHAPED else (2, 3)
        jobs = {
            each: (torch_adapter(schedule, each[1], each[0]), FIRST[0])
            for each in product(chunks, (ranks, ranks + 1, 2 * ranks, 3 * ranks))
        }
        for (chunk, microbatches), verdict in over_ranks(jobs, ranks).items():
            count = {"ranks": ranks, "stages a rank": chunk, "microbatches": microbatches}
            known = _as_json(verdict)
            said = known["said"][0] if known["cell"] == "refused" else ""
            rows.append({"schedule": schedule} | count | {"verdict": known["cell"], "said": said})
        print(*rows[-len(jobs) :], sep="\n", flush=True)
        pd.DataFrame(rows).to_csv(target, index=False)


if __name__ == "__main__":
    matrix(Path(sys.argv[1]))
    counts(Path(sys.argv[1]))
