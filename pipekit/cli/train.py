"""``pipekit train``: a quick training on real images or text, to see a method at work."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import pipekit as pk
from pipekit.choices import require_choice
from pipekit.cli.common.options import OWN_MODEL, TABLE, TRAINED, Folder
from pipekit.cli.common.own import require_known
from pipekit.cli.schedule import own_schedule, require_method
from pipekit.names import MITIGATIONS, TRANSPORTS
from pipekit.references import require_module


def train(
    model: Annotated[
        str,
        typer.Option(metavar="NAME|module:factory", help=f"{TRAINED}; or {OWN_MODEL}"),
    ] = "convnet",
    data: str | None = None,
    test_data: Annotated[str | None, typer.Option(metavar="module:batches")] = None,
    loss: str | None = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    text: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None,
    method: Annotated[str, typer.Option(help=TABLE)] = "flush",
    stages: int = 4,
    replicas: str | None = None,
    transport: Annotated[
        str, typer.Option(help=f"A thread or a process for each worker: {TRANSPORTS}.")
    ] = "threads",
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    batch_rows: int = 64,
    microbatches: int = 4,
    lr: Annotated[float, typer.Option(min=0)] = 0.002,
    mitigation: str | None = None,
    autocast: Annotated[str | None, typer.Option(metavar="bf16|fp16")] = None,
    loss_scale: Annotated[str | None, typer.Option(metavar="NUMBER|dynamic")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    checkpoints: Folder = None,
    every: Annotated[int | None, typer.Option(min=1)] = None,
    resume: bool = False,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS")] = None,
    quiet: bool = False,
    output: Folder = None,
) -> None:
    """Train a network, yours or one that comes with data, by any method.

    A model of yours is recorded (pipekit.stages), and refused if its layers do not give the same
    bits; its batches are yours.

    convnet and mlp learn 4,000 MNIST images, and are tested on 1,000 others. gpt learns Python's
    standard library: 8,000 rows of 64 bytes, and is tested on 1,000 rows of other files, in bits
    per byte, 8 at first.

    \b
    [b]Examples[/b]
      pipekit train --method pipedream --stages 2 --epochs 3
      pipekit train --model nets:llama --data nets:text --loss nets:next_token
      pipekit train --model gpt --text mine.txt --epochs 3
      pipekit train --method 2bw --autocast fp16 --loss-scale dynamic
      pipekit train --method pipedream-no-stashing --mitigation spectrain
      pipekit cluster --workers 3 --link 1gbit -- pipekit train \\
        --method pipedream --replicas 2-1 --transport distributed
      torchrun --nproc-per-node 2 --max-restarts 3 --no-python pipekit train \\
        --stages 2 --transport distributed --checkpoints saved --every 20 --resume

    Args:
        test_data: For a model of yours: like --data, to test on after each epoch.
        steps: For a model of yours: batches of an epoch; by default all of the data.
        text: For gpt: learn this file, and test on its last tenth.
        batch_rows: Rows of each batch: images, or 64 bytes of text.
        microbatches: Number in each batch; methods that update every minibatch do not split it.
        lr: Learning rate of Adam.
        autocast: Mixed precision, with weights in float32.
        loss_scale: Multiply losses, and skip updates whose gradient is not finite.
        seed: Seed of weights, shuffling and dropout.
        checkpoints: Write checkpoints here, at least after each epoch.
        every: Batches from one checkpoint to the next.
        resume: Continue from the newest checkpoint, if there is one.
        timeout: Fail after so long without progress of any worker, and say who waits for whom.
        output: Write the timeline (SVG, CSV), the last epoch's events (CSV, and for Perfetto) and
            the provenance here.
    """
    require_known(model, TRAINED)
    require_method(method)
    TRANSPORTS.require(transport)
    require_choice("--autocast", autocast, (None, "bf16", "fp16"))
    if mitigation is not None:
        MITIGATIONS.require(mitigation.partition(":")[0])
    for reference in filter(None, (data, test_data, loss)):
        require_module(reference)
    import torch

    from pipekit.cli.common import training
    from pipekit.engine.transports import torchrun
    from pipekit.schedules.methods import by_name

    if checkpoints is None and (resume or every is not None):
        raise ValueError("--resume and --every need a folder: name it, --checkpoints FOLDER")
    if text is not None and model != "gpt":
        raise ValueError("--text is for a network that learns text: name it, --model gpt")
    is_own = ":" in model
    if not is_own and any(option is not None for option in (data, test_data, loss, steps)):
        raise ValueError(
            f"--data, --test-data, --loss and --steps are for a model of yours: {model} has its own"
        )
    split = stages if replicas is None else by_name.parse_replicas(replicas)
    shown = not torchrun.launched() or torchrun.rank() == 0
    torch.manual_seed(seed)
    learning = (
        training.own(model, data, test_data, loss, steps)
        if is_own
        else training.known(model, text, batch_rows, seed)
    )
    named = by_name.TABLES.get(method, partial(own_schedule, method))
    schedule = named(split, microbatches)
    pipeline = pk.Pipeline(
        learning.layers,
        schedule if schedule.is_endless else schedule.repeat(),
        optimizer=partial(torch.optim.Adam, lr=lr),
        loss=learning.loss,
        transport=transport,
        seed=seed,
        updates=pk.Updates(loss_scale=_number(loss_scale), mitigation=mitigation),
        execution=pk.Execution(
            autocast={"bf16": torch.bfloat16, "fp16": torch.float16}.get(autocast or ""),
            timeout=timeout,
        ),
    )
    begin = pipeline.resume(checkpoints) if resume and checkpoints else 0
    if begin >= epochs:
        raise ValueError(f"{checkpoints} is of epoch {begin + 1}: name at least as many --epochs")
    done: list[training.Epoch] = []
    try:
        for epoch in range(begin, epochs):
            run = pipeline.train(
                learning.batches(epoch),
                checkpoints=checkpoints and pk.Checkpoints(checkpoints, every),
                watch=pk.Watch(progress=shown and not quiet),
            )
            test = learning.test
            score = None if test is None else pipeline.evaluate(test, learning.metric.of)
            done.append(training.Epoch(epoch + 1, run, score))
    except KeyboardInterrupt:
        if shown and checkpoints is not None:
            typer.echo(f"interrupted: {_how_to_resume(checkpoints)}", err=True)
        raise
    except (pk.WorkerDied, pk.Stalled) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        typer.echo(_how_to_resume(checkpoints), err=True)
        raise typer.Exit(1) from error
    finally:
        if shown and done:
            training.print_epochs(done, learning)
    if shown and output is not None and not run.trace.frame.empty:
        for path in training.write(run, learning.source, output):
            typer.echo(f"wrote {path}")


def _how_to_resume(checkpoints: Path | None) -> str:
    if checkpoints is None:
        return "nothing was saved: --checkpoints FOLDER --every 20 would have let it be resumed"
    line = shlex.join(["pipekit", *sys.argv[1:]])
    return f"to go on from the newest checkpoint: {line}{'' if '--resume' in line else ' --resume'}"


def _number(text: str | None) -> float | str | None:
    try:
        return text if text is None else float(text)
    except ValueError:
        return text
