"""The stages of a pipeline's model between runs."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.engine.assignment import WorkerReport
from pipekit.engine.checkpoints.resume_point import ResumePoint
from pipekit.engine.config import Norm
from pipekit.engine.execution.stage import Edit, StageConfig, StageSource
from pipekit.engine.runs.users_model import UsersModel, users_models
from pipekit.engine.updates.optimizer_state import NamedState, original_names
from pipekit.layers.module_state import is_evaluating
from pipekit.layers.python_state import is_pure, set_attributes
from pipekit.layers.seeded import torch_seed
from pipekit.layers.skips import between, links
from pipekit.partition.balance import balance_by_cost
from pipekit.partition.checks import original_unused
from pipekit.partition.partition import (
    Partition,
    cut,
    find_ties,
    partition,
    require_handed_on_within,
    require_unshared,
)
from pipekit.partition.probe import Probe, layer_costs, probe
from pipekit.partition.recording.stage import (
    copied_entry,
    extra_states,
    owners,
    require_taken,
    set_extra_states,
)
from pipekit.trees import Tree

_HERE = -1  # in place of a worker's number: no worker has trained the stage since


class ModelStages:
    """A model, and from the first batch on its stages.

    ``original`` are the user's layers, which never run; the stages take over the ``model``, a copy.
    ``configs`` are those of the stages, still without layers.
    """

    def __init__(
        self,
        original: nn.Sequential,
        model: nn.Sequential,
        balance: Sequence[int] | str,
        configs: Sequence[StageConfig],
    ) -> None:
        self.original, self._model = original, model
        self.users, self.was_evaluating = UsersModel(original), is_evaluating(original)
        self._configs, self._links = configs, links(model)
        self.balance = None if isinstance(balance, str) else list(balance)  # layers of each stage
        state, whole = model.state_dict(), users_models(original)[-1].state_dict()
        # In the order of the user's model, by which alone values may be told apart.
        places = {name: place for place, name in enumerate([*state, *whole])}
        self.names = sorted(state, key=places.__getitem__)
        self.metadata = getattr(state, "_metadata", None)
        self.partition: Partition | None = None  # its stages, from the first batch on
        self.tried_in_training = False
        self.edits_batch = False  # whether its forward edits its input in place, each time anew
        self._seed: int | None = 0
        # By its index, a stage as each of its workers has it after a training.
        self._stages: dict[int, dict[int, StageSource]] = {}
        self._edits: list[Edit] = []  # of optimizers that there are not yet

    @property
    def norm(self) -> Norm:
        """The norm over the gradients of all trained parameters."""
        dtypes = [weight.dtype for weight in self.users.trained]
        return Norm(len(dtypes), reduce(torch.promote_types, dtypes)) if dtypes else Norm()

    @property
    def joints(self) -> Partition | None:
        """What joins the stages to be, without these; None: only the first batch tells."""
        balance = self.balance or [1] * len(self._model)
        skips, ties = between(self._links, balance), find_ties(cut(self._model, balance))
        known = self.balance or not (skips or ties)
        return Partition((), tuple(skips), ties) if known else None

    def prepare(
        self,
        sample: Tree,
        autocast: torch.dtype | None,
        point: ResumePoint | None,
        training: bool,
    ) -> Probe | None:
        """Cut the model into stages once; return the trial in the run's mode, if any."""
        if changed := self.users.taken():
            for module in self._everywhere():
                set_attributes(module, changed)
            self._replace(lambda config: config)
        tried = None
        if self.partition is None:
            with self._original_unused():
                tried = probe(self._model, sample, autocast, training=training)
            self._cut(tried, point)
        elif training and not self.tried_in_training:  # it was cut for an evaluation
            tried = found = self.probe(sample, autocast, training=True)
            assert self.balance is not None
            require_handed_on_within(self.balance, tried.handed_on)
            require_unshared(self.original, self.balance, tried.edited_weights)
            self._replace(lambda config: config.with_part(config.passes.part.with_edits(found)))
        if tried:
            self.edits_batch = tried.edits_batch
        self.users.warn(tried, lambda: self.modules)
        return tried

    def require_gradients(
        self, names: Iterable[str], flag: bool, point: ResumePoint | None
    ) -> None:
        """Let weights be trained, or not; optimizers begin anew, or as at a resumed ``point``."""
        users = self.users
        users.choose(names, flag)
        if self.partition is None:
            users.mark(self._model)
            return
        assert self.balance is not None
        self.partition = self.partition.retrained(
            cut(self.original, self.balance),
            lambda stage: [each for each in stage.parameters() if each in users.trained],
        )
        parts = self.partition.stages

        def marked(config: StageConfig) -> StageConfig:
            users.mark(config.module)
            part = replace(parts[config.passes.part.index], module=config.module)
            return replace(config.with_part(part), state=None)

        self._replace(marked)
        if point:
            self._take_state(point)

    def _cut(self, tried: Probe, point: ResumePoint | None) -> None:
        balance = self.balance
        if balance is None:
            balance = balance_by_cost(layer_costs(self._model, tried.flops), len(self._configs))
        require_unshared(self.original, balance, tried.edited_weights)
        self.balance = balance
        skips = between(self._links, balance) if self._links else ()
        self.partition = partition(self._model, balance, tried, skips).separated()
        for part, config in zip(self.partition.stages, self._configs, strict=True):
            passes = replace(config.passes, part=part, seed=self._seed)
            self._stages[part.index] = {_HERE: replace(config, passes=passes)}
        self._model = nn.Sequential()  # the stages own the layers now
        if point:
            self._take_state(point)
        for edit in self._edits:
            self.edit(edit)

    def probe(self, sample: Tree, autocast: torch.dtype | None, training: bool = False) -> Probe:
        """Run some rows through the layers, after the model was cut."""
        layers = nn.Sequential(*chain.from_iterable(self.modules))
        devices: list[torch.device] = []  # where the evaluation has left each layer
        for layer in layers:
            before = torch.empty(0, device=devices[-1]) if devices else torch.empty(0)
            devices.append(next(layer.parameters(), before).device)
        with self._original_unused():
            return probe(layers, sample, autocast, devices, training)

    def _original_unused(self) -> AbstractContextManager[None]:
        """Refuse forwards that lead back to the user's own modules, as functions of theirs may."""
        return nullcontext() if is_pure(self.original) else original_unused(self.original)

    def reseed(self, given: int | str | None) -> int | None:
        """Let layers draw from this seed from now on, a word meaning torch's own, and return it."""
        seed = torch_seed() if isinstance(given, str) else given
        if seed != self._seed:
            self._seed = seed
            if self._stages:
                self._replace(lambda each: replace(each, passes=replace(each.passes, seed=seed)))
        return seed

    def resume(self, point: ResumePoint) -> None:
        """Go back to a checkpoint; ValueError says that it is of another model or optimizer."""
        point.load_into(self.modules)
        self._take_state(point)
        self._edits.clear()  # they were made before the saved run
        if self.balance is None and len(point.stages) == len(self._configs):
            self.balance = point.about["balance"]

    def of_worker(
        self, worker: int, stage_workers: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, StageSource]]:
        """Yield the stages of a worker, with their indices."""
        assert self.partition
        for index, copies in self._stages.items():
            workers, first = stage_workers[index], next(iter(copies.values()))
            if worker == workers[0]:
                yield index, first
            elif worker in workers:
                # Weights and running statistics are the same on all; other buffers may not be.
                other = any(True for _ in self.partition.stages[index].module.buffers())
                is_kept = worker in copies and not other
                yield index, copies[worker] if is_kept else copy.deepcopy(first.config)

    def take(self, reports: Sequence[WorkerReport]) -> None:
        """Take over the stages from the reports; of each the first worker's counts for buffers."""
        found: dict[int, dict[int, StageSource]] = defaultdict(dict)
        for worker, report in enumerate(reports):
            for index, stage in report.stages.items():
                found[index][worker] = stage
        self._stages = dict(sorted(found.items()))

    def read(self) -> None:
        """Fetch all stages from their workers; raises WorkerDied for a process that has ended."""
        self._everywhere()

    def state(self) -> dict[str, Any]:
        """Return copies of the weights, buffers and extra states that are here, by name."""
        here = chain.from_iterable(module.state_dict().items() for module in self.modules)
        return {name: copied_entry(entry) for name, entry in here}

    def known_extra_states(self) -> dict[str, Any]:
        """Return copies of the modules' extra states, as they were last read."""
        known = [stage.known.module for stage in self._first()] or [self._model]
        return {name: entry for each in known for name, entry in extra_states(each).items()}

    def load(self, state: Mapping[str, Any], strict: bool) -> None:
        """Load weights, buffers and extra states; see :meth:`pipekit.Pipeline.load_state_dict`."""
        if not isinstance(state, Mapping):
            raise TypeError(f"a state is a dict, as model.state_dict() gives it, not {type(state)}")
        missing, unknown = {*self.names} - {*state}, {*state} - {*self.names}
        if strict and (missing or unknown):
            said = [f"{min(missing)!r} is missing"] if missing else []
            said += [f"{min(unknown)!r} is not in the model"] if unknown else []
            count = len(missing | unknown)
            raise ValueError(f"{count} names differ: {' and '.join(said)} (strict=False)")
        modules = self._everywhere()
        extra = {name for module in modules for name, _ in owners(module)}
        here = self.original.state_dict(keep_vars=True).items()
        # As in torch, the last name of a shared tensor counts, here for its copies on all stages.
        last = {id(tensor): state[name] for name, tensor in here if name in state}
        given = {name: last[id(tensor)] for name, tensor in here if id(tensor) in last}
        own = [
            (name, tensor)
            for module in modules
            for name, tensor in module.state_dict(keep_vars=True).items()
            if name in given and name not in extra and isinstance(tensor, Tensor)
        ]
        for name, tensor in own:
            if not isinstance(given[name], Tensor):
                raise TypeError(
                    f"{name!r} is a tensor in the model, and a {type(given[name]).__name__} in "
                    f"what is to be loaded: make it one by torch.as_tensor()"
                )
            if given[name].shape != tensor.shape:
                raise ValueError(
                    f"{name!r} is {list(tensor.shape)} in the model and {list(given[name].shape)} "
                    f"in what is to be loaded"
                )
        for module in modules:
            require_taken(module, state)
        with torch.no_grad():
            for name, tensor in own:
                tensor.copy_(given[name])
        for module in modules:
            set_extra_states(module, state)
        self._replace(lambda config: config)

    def forget(self) -> None:
        """Drop the state of a failed run before other weights come; optimizers begin anew."""
        self._have_here(replace(each.known, state=None) for each in self._first())

    def edit(self, function: Edit) -> None:
        """Let a function change every stage's optimizer, now or once it exists."""
        if self.partition is None:
            self._edits.append(function)
        else:
            self._replace(lambda config: config.edited(function))

    def optimizer_state(self) -> NamedState:
        """Return the optimizers' state of each parameter here, by its name."""
        found: NamedState = {}
        for config in self.configs:
            names = original_names(config.module)
            own = dict(config.module.named_parameters(remove_duplicate=False))
            for name, entry in ((config.state or {}).get("optimizer") or {}).items():
                found[names[own[name]]] = entry
        return copy.deepcopy(found)

    def _have_here(self, configs: Iterable[StageConfig]) -> None:
        """Have these stages, which no worker has trained since."""
        self._stages = {each.passes.part.index: {_HERE: each} for each in configs}

    def _take_state(self, point: ResumePoint) -> None:
        self._have_here(replace(each, state=point.state_for(each)) for each in self.configs)

    def _replace(self, change: Callable[[StageConfig], StageConfig]) -> None:
        """Change the config of each stage on each of its workers, whose own counts no more."""
        self._stages = {
            index: {worker: change(each.config) for worker, each in copies.items()}
            for index, copies in self._stages.items()
        }

    def _everywhere(self) -> list[nn.Sequential]:
        """Return the layers of each stage on each of its workers, or the model before it is cut."""
        each = chain.from_iterable(copies.values() for copies in self._stages.values())
        return [stage.config.module for stage in each] or [self._model]

    def _first(self) -> list[StageSource]:
        """Return the stages as the first of their workers here have them."""
        return [next(iter(copies.values())) for copies in self._stages.values()]

    @property
    def configs(self) -> list[StageConfig]:
        """The configs of the stages that are here."""
        return [stage.config for stage in self._first()]

    @property
    def modules(self) -> list[nn.Sequential]:
        """The layers that are here, under their names in the unsplit model."""
        return [config.module for config in self.configs] or [self._model]
