"""An exported graph, read as a program: its operators run once, and each is a step."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from pipekit.partition.exporting.sizes import Sizes
from pipekit.partition.recording.operations import name_of
from pipekit.partition.recording.operator_kinds import OperatorKinds
from pipekit.partition.recording.program import Made, Program, Step
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.recording.storages import Storages
from pipekit.partition.recording.templates import (
    Constant,
    Device,
    Node,
    Template,
    Value,
    Weight,
    decode,
    encode,
    resolver,
    tensors,
)

_FRAME = re.compile(r'File "([^"]*[/\\])?([^"/\\]+)", line (\d+)')
_WEIGHTS = {InputKind.PARAMETER, InputKind.BUFFER}


class GraphReader:
    """Reads one exported graph.

    Its operators run on the example, which tells what edits what, what shares memory, and where
    random numbers are drawn and gradients flow.

    Args:
        exported: the graph, in one mode of the model.
        model: whose weights are used; its buffers may be written.
        blocks: the modules that are blocks, with their names.
        device: where the model computes.
        rows: how many rows the example has.
    """

    def __init__(
        self,
        exported: ExportedProgram,
        model: nn.Module,
        blocks: Mapping[nn.Module, str],
        device: torch.device,
        rows: int,
    ) -> None:
        self._exported, self._model, self._blocks = exported, model, blocks
        self._device, self._kinds = device, OperatorKinds(device)
        self._placeholders = exported.graph.find_nodes(op="placeholder")
        fakes = [node.meta.get("val") for node in self._user_inputs()]
        self._sizes = Sizes([fake for fake in fakes if isinstance(fake, Tensor)], rows)
        self._tensors: dict[int, Tensor] = {}
        self._made: dict[int, Made] = {}
        self._storages: dict[int, int] = {}
        self._steps: list[Step] = []
        self._grad = True
        self._autocast: tuple[str, torch.dtype | None, bool, bool] | None = None

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
        """Return the program, of which ``batch`` and ``output`` are those of the export.

        Args:
            args, kwargs: what the graph was exported with.

        Raises:
            NotRecordable: an operator cannot be a step; the message says where and what to do.
        """
        self._stored = Storages(self._model)  # now: buffers are copies meanwhile
        given = iter(pytree.tree_leaves((args, kwargs)))
        env: dict[fx.Node, Template] = {}
        inputs = []
        specs = self._exported.graph_signature.input_specs
        for node, spec in zip(self._placeholders, specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                env[node] = self._numbered(next(given), node)
                inputs.append(env[node])
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                env[node] = Constant(self._exported.constants[spec.target])
            elif spec.kind in _WEIGHTS:
                env[node] = Weight(spec.target)
            else:
                raise NotRecordable(
                    f"the exported model takes a {spec.kind.name.lower()} ({spec.target}), which "
                    f"stages cannot: use way='record'"
                )
        with self._kinds, torch.enable_grad():
            results = self._run(self._exported.graph_module, env)
        return Program(
            batch=self._tree(self._exported.call_spec.in_spec, inputs),
            steps=tuple(self._steps),
            output=self._tree(self._exported.call_spec.out_spec, self._outputs(results)),
            made=self._made,
            sizes=self._sizes.example,
            limits=self._sizes.limits(),
        ).without_dead_steps()

    def _user_inputs(self) -> Iterator[fx.Node]:
        specs = self._exported.graph_signature.input_specs
        for node, spec in zip(self._placeholders, specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                yield node

    def _outputs(self, results: list[Template]) -> list[Template]:
        """Return those of the graph's outputs that the model returns."""
        specs = self._exported.graph_signature.output_specs
        kinds = {spec.kind for spec in specs} - {OutputKind.USER_OUTPUT}
        if kinds:
            raise NotRecordable(
                f"the exported model has a {kinds.pop().name.lower()}, which stages have not: use "
                f"way='record'"
            )
        return results

    @staticmethod
    def _tree(spec: Any, found: list[Template]) -> Template:
        return encode(pytree.tree_unflatten(found, spec), lambda leaf: leaf)

    def _run(self, module: fx.GraphModule, env: dict[fx.Node, Template]) -> list[Template]:
        """Run a graph whose inputs are known; return its outputs."""
        for node in module.graph.nodes:
            if node.op == "output":
                outputs: list[Template] = [self._argument(a, env) for a in node.args[0]]
                return outputs
            if node.op == "call_function":
                env[node] = self._result(node, env)
            elif node.op == "get_attr" and isinstance(getattr(module, node.target), Tensor):
                env[node] = Constant(getattr(module, node.target))
        raise AssertionError("a graph has an output")

    def _result(self, node: fx.Node, env: dict[fx.Node, Template]) -> Template:
        """Return what a node gives; if it is an operator that does something, make it a step."""
        target, place = node.target, _place(node)
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
            return self._sizes.number(value, place)
        if target is operator.getitem:
            index: Any = node.args[1]
            return env[node.args[0]].children[index]  # type: ignore[index]
        if isinstance(target, torch._ops.OpOverload):
            return self._step(node, target, env, place)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._region(node, target.name(), env, place)
        raise NotRecordable(f"{place} calls {target}, which no stage can: use way='record'")

    def _region(
        self, node: fx.Node, name: str, env: dict[fx.Node, Template], place: str
    ) -> Template:
        """Run a graph within the graph: what stood under ``no_grad`` or ``autocast``."""
        settings = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
        if name not in settings:
            raise NotRecordable(
                f"{place} runs {name}, a graph within the graph, which is no step of a stage: use "
                f"way='record', and make what holds it a block by blocks=[...]"
            )
        count = settings[name]
        body: Any = node.args[count]
        inner = getattr(node.graph.owning_module, body.target)
        given = [self._argument(argument, env) for argument in node.args[count + 1 :]]
        inner_env = dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True))
        before = self._grad, self._autocast
        if count == 1:
            self._grad = bool(node.args[0])
        else:
            self._autocast = tuple(node.args[:4])  # type: ignore[assignment]
        try:
            results = self._run(inner, inner_env)
        finally:
            self._grad, self._autocast = before
        return Node(tuple, None, tuple(results))

    def _step(
        self,
        node: fx.Node,
        target: torch._ops.OpOverload[..., Any],
        env: dict[fx.Node, Template],
        place: str,
    ) -> Template:
        schema = target._schema
        if not schema.returns and not schema.is_mutable:
            return None  # it asserts something of sizes or dtypes
        arguments = self._argument((node.args, dict(node.kwargs)), env)
        step = Step(
            operation=name_of(target),
            block=self._block(node),
            arguments=arguments,
            results=(),
            grad=self._grad,
            autocast=self._autocast,
            place=place,
        )
        args, kwargs = decode(arguments, self._resolve())
        given = tensors((args, kwargs))
        references = list(_leaves(arguments))
        versions = [tensor._version for tensor in given]
        self._kinds.reset()
        made = step.run(target, *args, **kwargs)
        edited = [
            (reference, tensor)
            for reference, tensor, version in zip(references, given, versions, strict=True)
            if tensor._version != version
        ]
        if any(isinstance(reference, Constant) for reference, _ in edited):
            raise NotRecordable(
                f"{place} changes a tensor in place that is neither a parameter nor a buffer: make "
                f"it one by register_buffer()"
            )
        result = self._numbered(made, node)
        self._steps.append(
            replace(
                step,
                results=tuple(leaf.number for leaf in _leaves(result)),
                edits=frozenset(r.number for r, _ in edited if isinstance(r, Value)),
                edited_weights=frozenset().union(*(self._stored.names(t) for _, t in edited)),
                random=self._kinds.drew,
            )
        )
        return result

    def _numbered(self, made: Any, node: fx.Node) -> Template:
        """Return the template of a result, whose tensors get the next numbers."""
        fakes = iter(tensors(node.meta.get("val")))

        def numbered(leaf: Any) -> Template:
            if not isinstance(leaf, Tensor):
                return leaf
            number, fake = len(self._tensors), next(fakes)
            for length in fake.shape:
                self._sizes.number(length, _place(node))  # refuses what depends on contents
            self._tensors[number] = leaf
            storage = self._storages.setdefault(leaf.untyped_storage()._cdata, number)
            grows = tuple(map(self._sizes.growth, fake.shape))
            self._made[number] = Made(
                tuple(leaf.shape), grows, leaf.nbytes, leaf.requires_grad, storage
            )
            return Value(number)

        return encode(made, numbered)

    def _argument(self, argument: Any, env: Mapping[fx.Node, Template]) -> Template:
        def leaf(one: Any) -> Template:
            if isinstance(one, fx.Node):
                return env[one]
            if isinstance(one, torch.device) and one == self._device:
                return Device()
            return one

        return encode(_plain(argument), leaf)

    def _resolve(self) -> Callable[[Any], Any]:
        return resolver(self._tensors, self._model, self._sizes.example, self._device)

    def _block(self, node: fx.Node) -> tuple[str, int] | None:
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            name = self._blocks.get(self._model.get_submodule(path))
            if name is not None:
                before = key.rpartition("@")[2]
                return name, int(before) if before.isdigit() and "@" in key else 0
        return None


def _leaves(template: Template) -> Iterator[Any]:
    """Yield the references to tensors in a template, in order."""
    if isinstance(template, Node):
        for child in template.children:
            yield from _leaves(child)
    elif isinstance(template, (Value, Weight, Constant)):
        yield template


def _plain(argument: Any) -> Any:
    """Return an argument in plain tuples, lists and dicts, in the place of the graph's own."""
    if isinstance(argument, slice):
        return slice(_plain(argument.start), _plain(argument.stop), _plain(argument.step))
    if isinstance(argument, tuple):
        return tuple(map(_plain, argument))
    if isinstance(argument, list):
        return list(map(_plain, argument))
    if isinstance(argument, dict):
        return {key: _plain(value) for key, value in argument.items()}
    return argument


def _place(node: fx.Node) -> str:
    """Return ``file:line`` of what the node stands for, in the model's own code if it is known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if f"{'torch'}/" not in frame[0]] or frames
    return f"{own[-1][1]}:{own[-1][2]}" if own else f"{node.target}"
