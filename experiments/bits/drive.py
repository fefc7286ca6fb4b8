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
from cases import Case, cases
from models import FUNCTIONS, MODELS, OPTIMIZERS, ROWS
from torch import Tensor, nn

import pipekit as pk
from experiments.torchgpipe.cells import as_drawn
from pipekit import schedules
from pipekit.schedules.methods.by_name import METHODS

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


def schedule(case: Case) -> pk.Schedule:
    """Return a case's schedule."""
    options = dict(case.options)
    replicas, finite = options.pop("replicas", 1), options.pop("finite", None)
    match case.method:
        case "asp":
            made = schedules.asp(**options)
        case "pipedream":
            made = schedules.pipedream(case.stages, **options)
        case "2bw" if options:
            made = schedules.two_bw(case.stages, case.microbatches, **options)
        case "interleaved" if options:
            made = schedules.interleaved(case.stages, case.microbatches, **options)
        case "reversed gpipe":  # a table of a user's own
            made = as_drawn(case.stages, case.microbatches).repeat()
        case named:
            made = METHODS[named](case.stages, case.microbatches)
    made = made if replicas == 1 else schedules.replicate(made, replicas)
    return made if finite is None else made.take(finite)


def of_kind(kind: Any, settings: dict[str, Any]) -> Any:
    """Return a value of options, with the settings that are its fields; they are taken away."""
    names = [field.name for field in fields(kind) if field.name in settings]
    return kind(**{name: settings.pop(name) for name in names})


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

    def _build(self) -> pk.Pipeline:
        """Return the pipeline at its beginning."""
        settings = {"balance": self._balance, **self._case.settings, "short_batches": "fewer"}
        for name in {"lr_scheduler", "groups"} & settings.keys():
            settings[name] = FUNCTIONS[settings[name]]
        if "autocast" in settings:
            settings["autocast"] = getattr(torch, settings["autocast"])
        if isinstance(settings.get("loss_scale"), Mapping):
            settings["loss_scale"] = pk.LossScale(**settings["loss_scale"])
        return pk.Pipeline(
            self._layers,
            schedule(self._case),
            optimizer=OPTIMIZERS[self._case.optimizer],
            loss=self._model.loss,
            updates=of_kind(pk.Updates, settings),
            execution=of_kind(pk.Execution, settings),
            **settings,
        )

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

    def _module(self, steps: int, **how: Any) -> Any:
        """Train in a loop of one's own."""
        chunks = self._case.microbatches
        module = pk.PipelinedModule(self._layers, self._balance, chunks=chunks, **how)
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
                return self._pipeline.resume(self._folder)
            case "load":
                return self._pipeline.load_state_dict(self._layers.state_dict())
            case "predict":
                return self._pipeline.predict([x for x, _ in self._batches()])
            case "evaluate":
                return self._pipeline.evaluate(self._batches(), METRICS if how else None)
            case "rate":
                return self._pipeline.set_learning_rate(**how)
            case _:  # step_lr
                return getattr(self._pipeline, call)(**how)

    def state(self) -> Any:
        """Return what is left at the end: weights, buffers, and what the optimizers keep."""
        state, optimizers = self._pipeline.state_dict(), self._pipeline.optimizer_state()
        self._pipeline.close()
        return {"weights": state, "optimizer": optimizers}


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
