"""The matrix of schedules, models and verdicts: ``python -m tests.parity.matrix FOLDER``.

Writes ``matrix.csv``, a row a schedule and a column a model, and ``matrix.json`` with every class
of fault and the versions.  A cell has "right", "stale" as the method is, the classes of fault, or
"refused" where the trainer raises an exception on this model.
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from pipekit.names import METHODS
from pipekit.parity.judge import SEED, STEPS, judged
from pipekit.parity.suite import SUITE
from pipekit.parity.verdict import Verdict
from pipekit.parity.worker import Job, Record, train
from tests.engine.gloo import over_gloo
from tests.parity.adapters.own import Module, engine_adapter
from tests.parity.adapters.torch_pipelining import SCHEDULES, torch_adapter

RANKS = 2
FIRST = ("dense", "tied", "gated")
Trained = dict[str, Record | str]


def train_on(adapter: Any, models: list[str]) -> Trained:
    """Return this rank's record on each model, up to the first that fails, with its error."""
    torch.set_num_threads(1)
    if adapter.__module__.endswith("torch_pipelining"):
        dist.init_process_group("gloo", timeout=timedelta(seconds=25))
    found: Trained = {}
    for model in models:
        try:
            found[model] = train(Job(adapter, model, STEPS, SEED), lambda _: None)
        except Exception as error:
            found[model] = f"{type(error).__name__}: {error}".splitlines()[0]
            if dist.is_initialized():
                dist.destroy_process_group()  # so that the other rank does not wait
            break
    return found


def over_ranks(schedule: str, models: list[str]) -> dict[str, Verdict | str]:
    """Return the verdicts on a schedule of torch's, on two ranks."""
    verdicts: dict[str, Verdict | str] = {}
    while left := [model for model in models if model not in verdicts]:
        ranks = over_gloo(partial(_torch, schedule, left), RANKS)
        for model in dict.fromkeys(name for rank in ranks for name in rank):
            records = [rank[model] for rank in ranks if model in rank]
            errors = [record for record in records if isinstance(record, str)]
            if errors:
                verdicts[model] = min(errors, key=lambda error: "/gloo/" in error)
            else:
                verdicts[model] = judged(model, records)
    return verdicts


def _torch(schedule: str, models: list[str]) -> Trained:
    return train_on(torch_adapter(schedule), models)


def in_process(adapter: Any, models: list[str]) -> dict[str, Verdict | str]:
    """Return the verdicts on a trainer that needs no ranks."""
    verdicts: dict[str, Verdict | str] = {}
    for model in models:
        record = train_on(adapter, [model])[model]
        verdicts[model] = record if isinstance(record, str) else judged(model, [record])
    return verdicts


def trainers() -> dict[str, tuple[Callable[[list[str]], dict[str, Verdict | str]], list[str]]]:
    """Return the judge of each trainer, and the models that it is judged on."""
    every = [*SUITE]
    return {
        **{f"torch {name}": (partial(over_ranks, name), every) for name in SCHEDULES},
        "pipekit flush": (partial(in_process, engine_adapter("flush")), every),
        "pipekit PipelinedModule": (partial(in_process, Module), every),
        **{
            f"pipekit {method}": (partial(in_process, engine_adapter(method)), ["dense"])
            for method in METHODS
            if method != "flush"
        },
    }


def matrix(folder: Path) -> None:
    """Write both files; cells that the JSON has are kept, a few models of all trainers come first."""
    target = folder / "matrix.json"
    known = json.loads(target.read_text()) if target.exists() else {"verdicts": {}}
    known["versions"] = {"torch": torch.__version__, "pipekit": version("pipekit")}
    known["label"] = "measured"
    for chosen in (FIRST, tuple(SUITE)):
        for trainer, (judge, models) in trainers().items():
            row = known["verdicts"].setdefault(trainer, {})
            left = [model for model in models if model in chosen and model not in row]
            if left:
                row |= {model: _as_json(verdict) for model, verdict in judge(left).items()}
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


if __name__ == "__main__":
    matrix(Path(sys.argv[1]))
