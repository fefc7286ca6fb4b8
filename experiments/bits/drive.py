"""Trains cases with the pipekit on the path: a line of JSON each, with a hash of all that came out.

``__main__.py`` starts it once for each commit, beside the adapter of that commit.
"""

import hashlib
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import adapter
import torch
from cases import Case, cases
from models import FUNCTIONS, MODELS, OPTIMIZERS, ROWS
from torch import Tensor


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and tensors of a structure, by where they stand in it."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            yield from flat(inner, f"{name}/{place}")
    else:
        yield name, value


def bits(value: Any) -> str:
    """Return what tells a value from any that is not equal to the bit."""
    if isinstance(value, Tensor):
        about = f"{value.dtype} {list(value.shape)} ".encode()
        data = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(about + data).hexdigest()[:16]
    return struct.pack("<d", value).hex() if isinstance(value, float) else repr(value)


class Training:
    """A case under way."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder = case, folder
        self._model = MODELS[case.model]
        stages = case.stages if isinstance(case.stages, int) else len(case.stages)
        torch.manual_seed(0)
        self._layers = self._model.of(stages)
        is_even = len(self._layers) % stages == 0
        self._balance: Any = [len(self._layers) // stages] * stages if is_even else "auto"
        self._pipeline = self._build()

    def _build(self) -> Any:
        """Return the pipeline at its beginning."""
        case = self._case
        settings = {"balance": self._balance, **case.settings}
        for name in {"lr_scheduler", "groups"} & settings.keys():
            settings[name] = FUNCTIONS[settings[name]]
        if "autocast" in settings:
            settings["autocast"] = getattr(torch, settings["autocast"])
        table = adapter.schedule(case.method, case.stages, case.microbatches, **case.options)
        optimizer = OPTIMIZERS[case.optimizer]
        return adapter.pipeline(self._layers, table, optimizer, self._model.loss, settings)

    def _batches(self, count: int = 2, last_rows: int = ROWS) -> list[Any]:
        with torch.random.fork_rng():
            torch.manual_seed(count)
            return [self._model.batch(last_rows if k == count - 1 else ROWS) for k in range(count)]

    def _train(
        self,
        batches: int,
        stream: bool = False,
        last_rows: int = ROWS,
        checkpoints: bool = False,
        only_losses: bool = False,
        **how: Any,
    ) -> Any:
        if checkpoints:
            how["checkpoints"] = self._folder
        data: Any = self._batches(batches, last_rows)
        told: list[Any] = []
        run = adapter.train(self._pipeline, iter(data) if stream else data, told, **how)
        if "stop_after" in how:  # how far it gets then is the machine's to say
            return None
        return run["losses"] if only_losses else {**run, "told": told}

    def _module(self, steps: int, **how: Any) -> Any:
        """Train in a loop of one's own."""
        module = adapter.module(self._layers, self._balance, self._case.microbatches, **how)
        optimizer = OPTIMIZERS[self._case.optimizer](module.parameters())
        losses = []
        for x, y in self._batches(steps):
            optimizer.zero_grad()
            loss = self._model.loss(module(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return {"losses": losses, "state": module.state_dict()}

    def do(self, call: str, how: Mapping[str, Any]) -> Any:
        """Make one of the case's calls; return what comes of it."""
        match call:
            case "train":
                return self._train(**how)
            case "module":
                return self._module(**how)
            case "rebuild":
                self._pipeline.close()
                self._pipeline = self._build()
                return None
            case "resume":
                return adapter.perform(self._pipeline, call, self._folder)
            case "load":
                return adapter.perform(self._pipeline, call, self._layers.state_dict())
            case "evaluate" | "predict":
                return adapter.perform(self._pipeline, call, self._batches(), **how)
            case _:
                return adapter.perform(self._pipeline, call, **how)

    def state(self) -> Any:
        """Return what is left at the end."""
        found = adapter.state(self._pipeline)
        self._pipeline.close()
        return found


def outcome(case: Case) -> dict[str, str]:
    """Return the bits of all that comes of a case, by where they stand."""
    with tempfile.TemporaryDirectory(prefix="pipekit-bits-") as folder:
        training = Training(case, Path(folder))
        found = {f"{k} {call}": training.do(call, how) for k, (call, how) in enumerate(case.calls)}
        found |= training.state()
    return {name: bits(value) for name, value in flat(found)}


def main() -> None:
    """Train the cases that the command line names."""
    checkout = Path(os.environ["PYTHONPATH"])
    if not adapter.CHECKOUT.samefile(checkout):
        raise SystemExit(f"this is the pipekit of {adapter.CHECKOUT}, and not of {checkout}")
    for case in cases():
        if case.name in sys.argv[1:]:
            try:
                found = outcome(case)
            except Exception as error:  # one commit may refuse what the other trains
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps([case.name, found]), flush=True)


if __name__ == "__main__":
    main()
