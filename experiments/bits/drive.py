"""Trains cases with this checkout's pipekit: a line of JSON each, with a hash of all that came out.

``__main__.py`` starts it once for each commit, which brings its own.
"""

import hashlib
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pipekit as pk
from experiments.bits.cases import Case, M, cases
from experiments.bits.models import ROWS

CHECKOUT = Path(pk.__file__).parents[1]
KEPT = (
    *("losses", "microbatch_losses", "outputs", "loss_scales", "skipped_updates"),
    *("weight_slots", "peak_in_flight"),
)
"""What of a run is compared."""
METRICS = {"mse": nn.MSELoss(), "l1": nn.L1Loss()}


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


def of_kind(kind: Any, settings: dict[str, Any]) -> Any:
    """Return a value of options, with the settings that are its fields; they are taken away."""
    names = [field.name for field in fields(kind) if field.name in settings]
    return kind(**{name: settings.pop(name) for name in names})


class Training:
    """A case under way; its calls are the methods without an underscore."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case, self._folder, self._schedule = case, folder, case.schedule()
        stages = self._schedule.stages
        torch.manual_seed(0)
        self._layers = case.model.of(stages)
        is_even = len(self._layers) % stages == 0
        self._balance: Any = [len(self._layers) // stages] * stages if is_even else "auto"
        self._pipeline = self._build()

    def _build(self) -> pk.Pipeline:
        """Return the pipeline at its beginning."""
        settings = {"balance": self._balance, **self._case.settings, "short_batches": "fewer"}
        return pk.Pipeline(
            self._layers,
            self._schedule,
            optimizer=self._case.optimizer,
            loss=self._case.model.loss,
            updates=of_kind(pk.Updates, settings),
            execution=of_kind(pk.Execution, settings),
            **settings,
        )

    def _batches(self, count: int = 2, last_rows: int = ROWS) -> list[Any]:
        with torch.random.fork_rng():
            torch.manual_seed(count)
            return [
                self._case.model.batch(last_rows if k == count - 1 else ROWS) for k in range(count)
            ]

    def train(
        self,
        batches: int,
        stream: bool = False,
        last_rows: int = ROWS,
        checkpoints: bool = False,
        every: int | None = None,
        stop_after: int | None = None,
        only_losses: bool = False,
        **how: Any,
    ) -> Any:
        """Train; None of a run that stops early: how far it gets is the machine's to say."""
        told: list[Any] = []

        def on_batch(done: Any) -> bool:
            told.append((done.loss, done.learning_rates, done.gradient_norm))
            return len(told) == stop_after

        if checkpoints:
            how["checkpoints"] = pk.Checkpoints(self._folder, every)
        data: Any = self._batches(batches, last_rows)
        how["watch"] = of_kind(pk.Watch, how)
        run = self._pipeline.train(iter(data) if stream else data, on_batch=on_batch, **how)
        if stop_after is not None:
            return None
        return run.losses if only_losses else {n: getattr(run, n) for n in KEPT} | {"told": told}

    def module(self, steps: int, **how: Any) -> Any:
        """Train in a loop of one's own."""
        module = pk.PipelinedModule(self._layers, self._balance, chunks=M, **how)
        optimizer = self._case.optimizer(module.parameters())
        losses = []
        for x, y in self._batches(steps):
            optimizer.zero_grad()
            loss = self._case.model.loss(module(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return {"losses": losses, "state": module.state_dict()}

    def rebuild(self) -> None:
        self._pipeline.close()
        self._pipeline = self._build()

    def resume(self) -> Any:
        return self._pipeline.resume(self._folder)

    def load(self) -> Any:
        return self._pipeline.load_state_dict(self._layers.state_dict())

    def predict(self) -> Any:
        return self._pipeline.predict([x for x, _ in self._batches()])

    def evaluate(self, metrics: bool = False) -> Any:
        return self._pipeline.evaluate(self._batches(), METRICS if metrics else None)

    def rate(self, rate: float) -> Any:
        return self._pipeline.set_learning_rate(rate)

    def step_lr(self, metric: float) -> Any:
        return self._pipeline.step_lr(metric)

    def state(self) -> Any:
        """Return what is left at the end: weights, buffers, and what the optimizers keep."""
        state, optimizers = self._pipeline.state_dict(), self._pipeline.optimizer_state()
        self._pipeline.close()
        return {"weights": state, "optimizer": optimizers}


def outcome(case: Case) -> dict[str, str]:
    """Return the bits of all that comes of a case, by where they stand."""
    with tempfile.TemporaryDirectory(prefix="pipekit-bits-") as folder:
        training = Training(case, Path(folder))
        found = {
            f"{k} {call}": getattr(training, call)(**how)
            for k, (call, how) in enumerate(case.calls)
        }
        found |= training.state()
    return {name: bits(value) for name, value in flat(found)}


def main() -> None:
    """Train the cases that the command line names."""
    checkout = Path(os.environ["PYTHONPATH"])
    if not CHECKOUT.samefile(checkout):
        raise SystemExit(f"this is the pipekit of {CHECKOUT}, and not of {checkout}")
    for case in cases():
        if case.name in sys.argv[1:]:
            try:
                found = outcome(case)
            except Exception as error:  # one commit may refuse what the other trains
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps([case.name, found]), flush=True)


if __name__ == "__main__":
    main()
