"""Layers timed by the minibatch: how steady PipeDream's profile is (section 3.2)."""

import math
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from inspect import signature
from itertools import cycle
from statistics import fmean

import pandas as pd
import torch
from torch import Tensor, nn

from experiments.pipedream.settings import PROFILED_MINIBATCHES
from experiments.recorded.findings import Finding
from pipekit.choices import require_choice
from pipekit.models import PUBLISHED
from pipekit.profiling import Profile
from pipekit.profiling.layer_passes import Input, layer_name, run_backward, run_forward
from pipekit.profiling.measured import profile
from pipekit.trees import Tree, differentiable, leaves

WARM_UP = 5
"""Minibatches of a profile run that do not count."""

KEEP_MEMORY = {f"MALLOC_{name}_THRESHOLD_": str(2**30) for name in ("MMAP", "TRIM")}
"""Environment in which glibc reuses memory, as PipeDream does (section 3.5).  Otherwise it may ask
the kernel for every larger output anew, in one process and not in the other."""

SAME_WORK = 256
"""Rows and columns of a product that each minibatch begins with: as long as a layer, and the same
every time, so that what it varies by is the host's."""

LEAST_SHARE = 0.01
"""Of a network's time, below which a layer is too short to compare."""


def holds_three_quantities(model: nn.Sequential, sample: Tensor, costs: Profile) -> bool:
    """Return whether a profile has T_l, a_l and w_l of section 3.2 of every layer.

    They are looked for anew: a_l in the shape of the output and of the gradient that the next layer
    hands back, w_l in the parameters. T_l has a backward part wherever there is something to learn.
    """
    x, found = sample, []
    for number, layer in enumerate(model):
        y = layer(x)
        returned = torch.autograd.grad(y.sum(), y)[0] if y.requires_grad else y
        weights = sum(p.nbytes for p in layer.parameters())
        found.append((layer_name(layer, number), y.nbytes, returned.nbytes, weights))
        x = y
    return all(
        (mine.name, mine.output_bytes, mine.output_bytes, mine.parameter_bytes) == theirs
        and mine.forward_s > 0
        and (mine.backward_s > 0 or not mine.parameter_bytes)
        for mine, theirs in zip(costs.layers, found, strict=True)
    )


def profile_run(
    model: nn.Sequential, sample: Tensor, minibatches: int = PROFILED_MINIBATCHES
) -> pd.DataFrame:
    """Time every layer in each of many minibatches, on the CPU (section 3.2).

    :func:`pipekit.profile` gives medians; this keeps every minibatch, to see how they vary, but for
    a few to warm up. T_l, forward and backward together, in seconds of CPU time: a row a minibatch,
    a column a layer.  The claim is of an idle host, on which these are the clock's; on any other
    they leave out what its other programs take, but not that these use its caches and memory:
    ``attrs["host"]`` is the coefficient of variation of a product that is always the same.
    """
    rows = [_minibatch(model, sample) for _ in range(WARM_UP + minibatches)]
    return _run(rows, model)


def _minibatch(model: nn.Sequential, sample: Tensor) -> list[float]:
    """Return the CPU seconds of each layer, forward and backward together, and of the same work."""
    always = torch.ones(SAME_WORK, SAME_WORK)
    torch.mm(always, always)  # as layers, it finds its operands where they were used before
    start = time.process_time()
    torch.mm(always, always)
    same = time.process_time() - start
    x: Tree = sample
    seconds, pending = [], []
    for number, layer in enumerate(model):
        entered = Input(x, editable=False)
        start = time.process_time()
        x = run_forward(layer, layer_name(layer, number), entered.tree)
        seconds.append(time.process_time() - start)
        pending.append((entered, x))
    gradients: list[Tensor | None] = [torch.ones_like(t) for t in differentiable(x)]
    for number in reversed(range(len(model))):
        entered, y = pending[number]
        start = time.process_time()
        run_backward(layer_name(model[number], number), y, gradients)
        seconds[number] += time.process_time() - start
        gradients = entered.gradients
    return [*seconds, same]


def _run(rows: list[list[float]], model: nn.Sequential) -> pd.DataFrame:
    names = [layer_name(layer, number) for number, layer in enumerate(model)]
    times = pd.DataFrame(rows[WARM_UP:], columns=[*names, "the same work"])
    same = times.pop("the same work")
    times.attrs["host"] = float(same.std() / same.mean()) if same.any() else 0.0
    return times


def variation(times: pd.DataFrame) -> pd.DataFrame:
    """Return how a profile run's layers vary from minibatch to minibatch, a row a layer.

    Columns: layer, median_ms, cv (standard deviation over mean), cv_middle (the same of the middle
    95 % of minibatches, without the few that the machine held up), ci (half of the mean's 95 %
    confidence interval, over the mean) and share (of the network's time).
    """
    middle = times.where((times >= times.quantile(0.025)) & (times <= times.quantile(0.975)))
    cv = times.std() / times.mean()
    frame = pd.DataFrame(
        {
            "median_ms": times.median() * 1e3,
            "cv": cv,
            "cv_middle": middle.std() / middle.mean(),
            "ci": 1.96 * cv / math.sqrt(len(times)),
            "share": times.median() / times.median().sum(),
        }
    )
    return frame.rename_axis("layer").reset_index()


def of_two_workers(
    build: Callable[[], nn.Sequential], sample: Tensor, minibatches: int, rounds: int = 1
) -> list[pd.DataFrame]:
    """Return the profile runs of two equal workers: processes of one core at a time.

    They take turns, minibatch by minibatch, on one core after the other, so that whatever else a
    machine does beside one of them it does beside the other, too.  Each of ``rounds`` makes two
    runs, of new processes: where a process lies in memory has a part in its times.  A run's
    ``attrs["worker"]`` is 0 or 1.  ``build`` is a function of a module, as both call it.
    """
    return [run for _ in range(rounds) for run in _pair_of_runs(build, sample, minibatches)]


def _pair_of_runs(
    build: Callable[[], nn.Sequential], sample: Tensor, minibatches: int
) -> list[pd.DataFrame]:
    before, cores = dict(os.environ), sorted(os.sched_getaffinity(0))
    os.environ.update(KEEP_MEMORY)
    try:
        with ExitStack() as stack:
            workers = [stack.enter_context(_worker(build, sample)) for _ in range(2)]
            turns = [
                [worker.submit(_own_minibatch, core).result() for worker in workers]
                for _, core in zip(range(WARM_UP + minibatches), cycle(cores), strict=False)
            ]
    finally:
        os.environ.clear()
        os.environ.update(before)
    runs = [_run(list(rows), build()) for rows in zip(*turns, strict=True)]
    for number, run in enumerate(runs):
        run.attrs["worker"] = number
    return runs


def _worker(build: Callable[[], nn.Sequential], sample: Tensor) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, _start_worker, (build, sample))


def _start_worker(build: Callable[[], nn.Sequential], sample: Tensor) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    global _profiled
    _profiled = build(), sample


_profiled: tuple[nn.Sequential, Tensor]
"""The network and the minibatch of this process, if it is a worker."""


def _own_minibatch(core: int) -> list[float]:
    os.sched_setaffinity(0, {core})
    return _minibatch(*_profiled)


def differences(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
    """Return the relative difference of the medians of each layer that takes at least 1 %."""
    mine, theirs = one.median(), other.median()
    mean = (mine + theirs) / 2
    relative = (mine - theirs).abs() / mean
    return relative[mean >= LEAST_SHARE * mean.sum()]


def whole_models(models: str, repeats: int) -> pd.DataFrame:
    """Return the fastest passes of undivided published models on this CPU.

    ``models`` are named with their rows, "vgg16 1, resnet50 2".  A row a model: model, rows,
    forward_s, backward_s and ratio, of the backward to the forward.

    Raises:
        ValueError: a model has another name.
    """
    named = [entry.split() for entry in models.split(",")]
    for name, _ in named:
        require_choice("model", name, PUBLISHED)
    rows = [(name, int(count), *whole_passes(name, int(count), repeats)) for name, count in named]
    table = pd.DataFrame(rows, columns=["model", "rows", "forward_s", "backward_s"])
    return table.assign(ratio=table["backward_s"] / table["forward_s"])


def whole_passes(model: str, rows: int, repeats: int) -> tuple[float, float]:
    """Return the least seconds of an undivided model's forward and backward, once warm."""
    torch.manual_seed(0)
    network, sample = PUBLISHED[model].build().train(), PUBLISHED[model].sample(rows)
    took = []
    for _ in range(1 + repeats):
        network.zero_grad()
        start = time.perf_counter()
        outputs = leaves(network(sample))
        middle = time.perf_counter()
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
        took.append((middle - start, time.perf_counter() - middle))
    forwards, backwards = zip(*took[1:], strict=True)
    return min(forwards), min(backwards)


def quantities(costs: Profile) -> pd.DataFrame:
    """Return section 3.2's three quantities of each layer: T_l in ms, a_l and w_l in bytes."""
    frame = costs.to_frame()
    frame["T_l (ms)"] = (frame["forward_s"] + frame["backward_s"]) * 1e3
    return frame[["name", "T_l (ms)", "output_bytes", "parameter_bytes"]]


def quantities_findings(
    model: nn.Sequential, sample: Tensor, costs: Profile, minibatches: int
) -> list[Finding]:
    """Return what the model's profile holds, and over how many minibatches one is taken."""
    paper_run = signature(profile_run).parameters["minibatches"].default
    usual = signature(profile).parameters["repeats"].default
    holds = holds_three_quantities(model, sample, costs)
    sizes = "sizes from shapes, on a convolutional network; T_l is measured"
    runs = (
        f"of this reproduction's profile run; pk.profile takes medians of {usual} by default; run "
        f"here: {minibatches}"
    )
    return [
        Finding.exact("pipedream-profiler-three-quantities", holds, sizes),
        Finding.measured("pipedream-profiler-1000-minibatches", paper_run, runs),
    ]


def steadiness_findings(runs: list[pd.DataFrame]) -> list[Finding]:
    """Return how much profile runs vary, each in itself and between the two workers.

    A run's own variation may be wrong by as much as work varies that is always the same: the claim
    is of an idle host, and that is how far from idle this one is.
    """
    one, other = ([run for run in runs if run.attrs["worker"] == w] for w in _workers(runs))
    varied, apart = variation(runs[0]), differences(one[0], other[0])
    host = fmean(run.attrs["host"] for run in runs)
    middle = (
        f"{host:.3f} of it may be this host's, on which the same product varies by so much; "
        f"CPU time of {len(runs[0])} minibatches after {WARM_UP}, two workers in turns, "
        f"{len(runs)} runs; in the middle 95 % of minibatches "
        f"{varied['cv_middle'].median():.3f}; the mean's 95 % confidence interval is "
        f"±{varied['ci'].median():.1%} (median over layers)"
    )
    layers = (
        f"two CPU processes in turns, mean of {min(len(one), len(other))} pairs; in the first "
        f"{apart.idxmax()}, among the {len(apart)} layers that take "
        f"at least {LEAST_SHARE:.0%} of the time; median {apart.median():.3f}"
    )
    each = [float(variation(run)["cv"].median()) for run in runs]
    most = [float(differences(*pair).max()) for pair in zip(one, other, strict=False)]
    low = Finding.measured("pipedream-profiler-low-variance", fmean(each), middle).over(each)
    return [
        replace(low, known_error=host / low.value if low.value else 0.0),
        Finding.measured("pipedream-single-gpu-profile-enough", fmean(most), layers).over(most),
    ]


def _workers(runs: list[pd.DataFrame]) -> list[int]:
    return sorted({run.attrs["worker"] for run in runs})


def backward_finding(wholes: pd.DataFrame, costs: Profile) -> Finding:
    """Return the least ratio of a backward to its forward, in :func:`whole_models`."""
    shorter = [layer.name for layer in costs.layers if layer.backward_s < layer.forward_s]
    note = (
        f"{', '.join(wholes['model'])}, each as a whole, on a CPU; single layers of the convnet "
        f"above with a shorter backward: {', '.join(shorter) or 'none'}"
    )
    least = float(wholes["ratio"].min())
    return Finding.measured("pipedream-backward-longer-than-forward", least, note)
