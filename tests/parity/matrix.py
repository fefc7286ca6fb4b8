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


def over_ranks(schedule: str) -> dict[str, Verdict | str]:
    """Return the verdicts on a schedule of torch's, on two ranks."""
    verdicts: dict[str, Verdict | str] = {}
    while left := [model for model in SUITE if model not in verdicts]:
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


def cell(verdict: Verdict | str) -> str:
    """Return what stands in the table."""
    if isinstance(verdict, str):
        return "refused"
    return ", ".join(verdict.classes) or "right"


def matrix(folder: Path) -> None:
    """Write both files, and begin anew with what is not yet in the JSON."""
    ours = [method for method in METHODS if method != "flush"]
    trainers: dict[str, Callable[[], dict[str, Verdict | str]]] = {
        **{f"torch {name}": partial(over_ranks, name) for name in SCHEDULES},
        "pipekit flush": partial(in_process, engine_adapter("flush"), [*SUITE]),
        "pipekit PipelinedModule": partial(in_process, Module, [*SUITE]),
        **{f"pipekit {m}": partial(in_process, engine_adapter(m), ["dense"]) for m in ours},
    }
    target = folder / "matrix.json"
    known = json.loads(target.read_text()) if target.exists() else {"versions": {}, "verdicts": {}}
    known["versions"] = {
        "torch": torch.__version__,
        "pipekit": version("pipekit"),
        "label": "measured",
    }
    for trainer, judge in trainers.items():
        if trainer not in known["verdicts"]:
            verdicts = judge()
            known["verdicts"][trainer] = {
                model: {
                    "cell": cell(verdict),
                    "ok": not isinstance(verdict, str) and verdict.ok,
                    "said": verdict
                    if isinstance(verdict, str)
                    else [str(finding) for finding in verdict.findings],
                }
                for model, verdict in verdicts.items()
            }
            target.write_text(json.dumps(known, indent=1) + "\n")
            print(trainer, {m: cell(v) for m, v in verdicts.items()}, flush=True)
    rows = [
        {"trainer": trainer} | {model: found.get(model, {}).get("cell", "-") for model in SUITE}
        for trainer, found in known["verdicts"].items()
    ]
    pd.DataFrame(rows).to_csv(folder / "matrix.csv", index=False)


if __name__ == "__main__":
    matrix(Path(sys.argv[1]))
