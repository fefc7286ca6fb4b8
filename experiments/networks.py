"""Which networks enter a pipeline, and what it costs; and what is refused how.

    make networks                                                   # every network
    python -m experiments.networks --network gpt2 --output mine

Each network of ``make models`` is recorded as it is.  Five more are drawn with the seed from
torchvision's and transformers' lists, without those that the tests name.
"""

import copy
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pandas as pd
import torch
import torchvision
import transformers
import typer
from torch import nn
from tqdm import tqdm
from transformers.models.auto import modeling_auto

import pipekit as pk
from pipekit import schedules
from pipekit.host.provenance import provenance, write
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.templates import tensors
from tests.engine.examples import data, mlp
from tests.losses import test_checks
from tests.partition import test_original, test_record_refusals
from tests.partition.networks import NETWORKS, Network, build, without_dropout
from tests.partition.test_recorded_networks import OPTIMIZER, loss
from tests.people.plain import plain_loop

SEED, REPEATS = 2024, 5
LOSS = nn.functional.mse_loss
IMAGES, LANGUAGE = 3, 2
"""How many networks are drawn from torchvision's classifiers, and from causal language models."""
SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner"), 128),
    **{"num_key_value_heads": 2, "vocab_size": 100, "head_dim": 16, "pad_token_id": 0},
}
TRAPS = {
    "an if on a tensor": "branches",
    ".item() of a tensor": "reads",
    "a tensor whose size depends on the batch's contents": "selects",
    "1 / len(x)": "counts_rows_in_floats",
    "x[: len(x) // 2]": "takes_half",
    "an attribute set in forward": "remembers",
    "an autograd function between blocks": "custom",
    "reentrant checkpoint between blocks": "checkpoints",
    "a hook on a tensor": "hooks",
    "an attribute edited in place": "edits_an_attribute",
    "a list that grows in forward": "logs",
    "a count in a dict": "counts_by_name",
}
UNTRAINED: dict[str, Callable[[], tuple[nn.Sequential, Any]]] = {
    "a loss with weights of its own": lambda: (mlp(6, 6, 3), test_checks.Scaled()),
    "a penalty over model.parameters()": lambda: test_checks.with_penalty(mlp(6, 6, 3)),
    "a lambda that calls a layer of the model": lambda: (test_original.by_lambda(), LOSS),
    "a replaced forward": lambda: (test_original.by_replaced_forward(), LOSS),
    "a hook that calls another layer": lambda: (test_original.by_hook(), LOSS),
}
"""What is refused when training begins: layers and a loss that nothing would train."""


def drawn(random: Random) -> dict[str, Callable[[], Network]]:
    """Return networks that nobody has named, by name."""
    images = torchvision.models.list_models(module=torchvision.models)
    language = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    known = {name.split(",")[0] for name in NETWORKS}
    found: dict[str, Callable[[], Network]] = {}
    for name in random.sample(sorted(set(images) - known), IMAGES):
        found[f"torchvision {name}"] = partial(classifier, name)
    for name in random.sample(sorted(set(language) - known), LANGUAGE):
        found[f"transformers {name}"] = partial(language_model, name, language[name])
    return found


def classifier(name: str) -> Network:
    """Return a classifier of torchvision's, as it comes, and two images."""
    size = 299 if name == "inception_v3" else 224
    return Network(torchvision.models.get_model(name), torch.randn(2, 3, size, size))


def language_model(name: str, class_name: str) -> Network:
    """Return a language model of transformers', small and without a cache, and a batch."""
    config = transformers.AutoConfig.for_model(name)
    for key, value in SMALL.items():
        if hasattr(config, key):
            setattr(config, key, value)
    config.use_cache = False
    model = getattr(transformers, class_name)(config)
    return Network(model, {"input_ids": torch.randint(5, 100, (3, 12))})


def tried(name: str, make: Callable[[], Network]) -> dict[str, Any]:
    """Return a row for a network as it is."""
    try:
        torch.manual_seed(0)
        model, batch = make()
        without_dropout(model)
    except Exception as error:
        return {"network": name, "outcome": "cannot be built", "sentence": said(error)}
    return {"network": name} | entered(model, batch)


def entered(model: nn.Module, batch: Any) -> dict[str, Any]:
    """Return how a network enters, how it trains, and what a forward and backward take."""
    judge = copy.deepcopy(model)
    start = time.perf_counter()
    try:
        layers = pk.stages(model, batch)
    except NotRecordable as error:
        return {"outcome": "refused", "sentence": said(error)}
    except Exception as error:
        return {"outcome": "fails", "sentence": said(error)}
    seconds = time.perf_counter() - start
    assert layers.summary is not None
    plain, converted = times(judge, layers, batch)
    return {
        "outcome": "equal" if trains_alike(judge, layers, batch) else "trains differently",
        "layers": len(layers),
        "cuts": len(layers) - 1,
        "verified": layers.summary.verified,
        "ms_plain": 1e3 * plain,
        "ms_converted": 1e3 * converted,
        "seconds_to_enter": seconds,
        "sentence": "",
    }


def times(model: nn.Module, layers: nn.Module, batch: Any) -> tuple[float, float]:
    """Return the seconds of a forward and backward of both, the least of several in turn."""
    found: list[list[float]] = [[], []]
    for _ in range(REPEATS + 1):
        for own, one in zip(found, (model, layers), strict=True):
            one.train()
            sample = batches.copied(batch, tracked=[])
            start = time.perf_counter()
            output = batches.call(one, sample) if one is model else one(sample)
            loss(output, torch.zeros(1)).backward()  # type: ignore[no-untyped-call]
            own.append(time.perf_counter() - start)
            one.zero_grad()
    plain, converted = (min(own[1:]) for own in found)
    return plain, converted


def trains_alike(judge: nn.Module, layers: nn.Sequential, batch: Any) -> bool:
    """Return whether two stages of PipeDream-Flush end with a plain loop's weights and losses."""
    # Timing has run both as often, so that their buffers have counted as many batches.
    steps = [(batch, torch.full((len(tensors(batch)[0]),), 0.1 * number)) for number in range(2)]
    count = min(2, len(layers))
    pipeline = pk.Pipeline(layers, schedules.flush(count, 1), optimizer=OPTIMIZER, loss=loss)
    losses = pipeline.train(steps).losses
    equal = losses == plain_loop(judge, OPTIMIZER, loss, steps)
    trained = pipeline.state_dict()
    return equal and all(torch.equal(trained[k], t) for k, t in judge.state_dict().items())


def refusals() -> Iterator[dict[str, str]]:
    """Yield what is refused, in recording and in training, with the sentence that it gets."""
    for title, name in TRAPS.items():
        model = test_record_refusals.Between(getattr(test_record_refusals, name))
        row = {"what": title, "when": "recording"}
        try:
            pk.stages(model, test_record_refusals.X)
            yield row | {"outcome": "equal", "sentence": ""}
        except NotRecordable as error:
            yield row | {"outcome": "refused", "sentence": said(error)}
    for title, make in UNTRAINED.items():
        layers, judge = make()
        pipeline = pk.Pipeline(
            layers, schedules.flush(2, 1).take(1), optimizer=OPTIMIZER, loss=judge
        )
        row = {"what": title, "when": "training"}
        try:
            pipeline.train(data(1))
            yield row | {"outcome": "equal", "sentence": ""}
        except ValueError as error:
            yield row | {"outcome": "refused", "sentence": said(error).removeprefix("ValueError: ")}


def said(error: Exception) -> str:
    """Return an error's first line, with its kind if it is none of ours."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, NotRecordable) else f"{type(error).__name__}: {line}"


def main(
    network: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write the tables to.")] = None,
) -> None:
    """Try networks, and write the tables."""
    warnings.simplefilter("ignore")  # what libraries say of themselves
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    makers: dict[str, Callable[[], Network]] = {name: partial(build, name) for name in NETWORKS}
    makers |= drawn(Random(SEED))
    wanted = [name for name in makers if not network or name in network]
    rows: list[dict[str, Any]] = []
    for name in tqdm(wanted, unit="network"):
        rows.append(tried(name, makers[name]))
        if output:  # a long run that is broken off leaves what it has found
            save(output, "networks", rows)
    if output:
        save(output, "refused", list(refusals()))
        record = provenance("measured", seed=SEED, repeats=REPEATS, threads=1)
        record["load_average_at_start"] = load
        libraries = {
            "torchvision": torchvision.__version__,
            "transformers": transformers.__version__,
        }
        write(output / "provenance.json", record | libraries)
    print(pd.DataFrame(rows).drop(columns="sentence", errors="ignore").to_string())


def save(output: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Write a table."""
    output.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(output / f"{name}.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    typer.run(main)
