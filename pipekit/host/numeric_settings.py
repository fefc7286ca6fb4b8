"""What torch's switches say about how numbers are computed, and the random numbers of Python and
NumPy, which a user's loss may draw; each process has its own."""

import os
import pickle
import random
import sys
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return what reads and what sets an attribute of torch."""
    owner, _, name = path.rpartition(".")
    return lambda: attrgetter(path)(torch), lambda v: setattr(attrgetter(owner)(torch), name, v)


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


_SETTINGS: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    # Its kind: which one of that kind is the worker's own.
    (lambda: torch.get_default_device().type, torch.set_default_device),
    (_deterministic, lambda v: torch.use_deterministic_algorithms(v[0], warn_only=v[1])),
    # First as a whole, then what somebody has set of it: torch refuses to read a mixture as one.
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    *map(
        _attribute,
        (
            "backends.cuda.matmul.fp32_precision",
            "backends.cudnn.conv.fp32_precision",
            "backends.cudnn.rnn.fp32_precision",
            "backends.mkldnn.matmul.fp32_precision",
            "backends.mkldnn.conv.fp32_precision",
            "backends.mkldnn.rnn.fp32_precision",
            "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
            "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
            "backends.cudnn.enabled",
            "backends.cudnn.benchmark",
            "backends.cudnn.deterministic",
            "backends.mkldnn.enabled",
            "backends.mkldnn.deterministic",
            "utils.deterministic.fill_uninitialized_memory",
        ),
    ),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    # A process may be older than what the user has set: OMP_NUM_THREADS, say, which splits sums.
    (partial(dict, os.environ), os.environ.update),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (random.getstate, random.setstate),
    # Pickled, since arrays have no one answer to whether they are equal.
    (lambda: pickle.dumps(np.random.get_state()), lambda v: np.random.set_state(pickle.loads(v))),
]


def numeric_settings() -> tuple[Any, ...]:
    """Return the switches of this process: default type and device, threads, precisions, kernels,
    determinism; its environment; and the states of random generators that threads share.

    None stands for one that is unknown.
    """
    return tuple(_read(get) for get, _ in _SETTINGS)


def apply_settings(values: tuple[Any, ...]) -> None:
    """Let this process have what :func:`numeric_settings` has returned in another one."""
    for (get, put), value in zip(_SETTINGS, values, strict=True):
        if value is not None and _read(get) != value:
            put(value)


def _read(get: Callable[[], Any]) -> Any:
    """Return a setting; None: torch has none, or cannot tell it as one."""
    try:
        return get()
    except (AttributeError, RuntimeError):
        return None
