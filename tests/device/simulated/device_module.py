"""The simulated accelerator as torch.sim: what torch looks for in a device's Python module."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)


def load(path: Path) -> ModuleType:
    """Load the built module, and make it torch's backend "sim" in this process for good.

    To be called before the process runs any backward: autograd counts its devices then.
    """
    spec = importlib.util.spec_from_file_location("_sim", path)
    assert spec is not None
    assert spec.loader is not None
    sim: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sim)
    rename_privateuse1_backend("sim")
    torch._register_device_module("sim", _module(sim))
    generate_methods_for_privateuse1_backend(for_storage=True)
    return sim  # type: ignore[no-any-return]


def _module(sim: Any) -> ModuleType:
    module: Any = ModuleType("torch.sim")
    generators = tuple(sim.default_generator(index) for index in range(sim.DEVICES))

    def index_of(device: Any = None) -> int:
        if device is None:
            return int(sim.current_device())
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return int(sim.current_device()) if index is None else int(index)

    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        generators[index_of(device)].set_state(state)

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    def set_stream(stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    module.is_initialized = module.is_available = lambda: True
    module._initialized = True  # torch.utils.checkpoint asks so
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.init = lambda: None
    module.device_count = lambda: sim.DEVICES
    module.current_device = sim.current_device
    module.set_device = lambda device: sim.set_device(index_of(device))
    module.device = lambda device: torch.accelerator.device_index(index_of(device))
    module.Stream, module.Event = torch.Stream, torch.Event
    module.current_stream = torch.accelerator.current_stream
    module.set_stream = set_stream
    module.stream = lambda stream: nullcontext() if stream is None else stream
    module.synchronize = lambda device=None: torch.accelerator.synchronize(index_of(device))
    module.default_generators = generators
    module.manual_seed = lambda seed: generators[index_of()].manual_seed(seed)
    module.manual_seed_all = manual_seed_all
    module.initial_seed = lambda: generators[index_of()].initial_seed()
    module.get_rng_state = lambda device=None: generators[index_of(device)].get_state()
    module.set_rng_state = set_rng_state
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.is_bf16_supported = lambda: True
    module.get_device_name = lambda device=None: "simulated accelerator"
    for name in ("memory_allocated", "max_memory_allocated", "memory_stats", "empty_cache"):
        setattr(module, name, getattr(torch.accelerator, name))
    module.reset_peak_memory_stats = torch.accelerator.reset_peak_memory_stats
    return module  # type: ignore[no-any-return]
