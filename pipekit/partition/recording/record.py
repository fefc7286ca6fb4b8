"""Record a module: it runs in both modes with batches of several sizes, and is left as it was."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import nn

from pipekit.host.user_frames import warn
from pipekit.layers.edited_tensors import weights_untouched
from pipekit.layers.module_state import in_evaluation, set_mode, state_untouched
from pipekit.layers.python_state import module_names
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.modules import Blocks, Wish
from pipekit.partition.recording.operators import RecordedOperators
from pipekit.partition.recording.program import Program
from pipekit.partition.recording.recorded_model import RecordedModel, Trial
from pipekit.partition.recording.recorder import PLAIN, Recorder, Way
from pipekit.partition.recording.refusal import NotRecordable, require_plain_operators
from pipekit.partition.recording.templates import tensors
from pipekit.partition.recording.unify import ROWS, Unifier, sizes_text

Programs = tuple[Program, Program]  # in training and in evaluation mode
Places = list[tuple[int, int]]  # tensors of the batch, and dimensions of these


class _Varied(NamedTuple):
    """A size of the batch, its rows or a length, and a recording with another one than known."""

    places: Places
    known: int  # in the example
    other: int
    recorded: Programs

    def near(self, times: float, plus: int, other_parity: bool) -> int:
        """Return so many times the known size, and one more if all three were even, or odd."""
        size = math.ceil(times * self.known) + plus
        return size + (other_parity and size % 2 == self.known % 2 == self.other % 2)


def record(
    model: nn.Module, example: Any, wish: Wish | None = None, way: Way = PLAIN
) -> list[RecordedModel]:
    """Return a module as a row of layers; if some lengths may vary, the model with these first.

    It runs in both modes, on other numbers of rows, and on other lengths, each by itself.
    """
    forwards = _Forwards(model, example, wish, way)
    with batches.left_as_it_was(model), batches.drawing_from_torch():
        rows, programs = forwards.of_other_rows()
        trial = Trial(f"{rows.known + 2} rows", batches.with_rows(example, rows.known + 2))
        found = [(programs, trial)]
        lengths = list(forwards.of_other_lengths(rows))
        if lengths:
            with suppress(NotRecordable):  # of several lengths together
                programs = forwards.programs(rows, *lengths)
                if longer_or_shorter := forwards.trial(programs, rows, lengths):
                    found.insert(0, (programs, longer_or_shorter))
    models = [RecordedModel(model, *each, way.traced, forwards.edited) for each in found]
    # Steps that ask for a length, of which no tensor tells at some cut, would close that cut.
    return models if len(models[0]) == len(models[-1]) else models[-1:]


class _Forwards:
    def __init__(self, model: nn.Module, example: Any, wish: Wish | None, way: Way) -> None:
        self._rows = batches.rows_of(example)
        self.edited: set[str] = set()  # names of weights that a forward has edited
        self._model, self._example, self._way = model, example, way
        self._blocks, self._kept = Blocks(model, wish), in_evaluation(model)
        self._device, self._tracked = batches.device_of(model), True
        # Beyond the end of a table of positions, say, an accelerator is lost to the process.
        self._goes_beyond = self._device.type == "cpu"

    def record(self, batch: Any) -> Programs:
        try:
            return self._one(batch, training=True), self._one(batch, training=False)
        except RuntimeError as error:
            if not self._tracked or batches.LEAVES_ALONE not in str(error):
                raise
            self._tracked = False  # the model's own code lets its input require gradients
        return self.record(batch)

    def _one(self, batch: Any, *, training: bool) -> Program:
        model = self._model
        set_mode(model, training, self._kept)
        sample = batches.copied(batch, tracked=[] if self._tracked else None)
        with (
            state_untouched(model),
            batches.stateless(self._blocks.outer, model),
            torch.enable_grad(),
        ):
            operators = RecordedOperators(model, self._device)
            recorder = Recorder(model, self._blocks.whole, self._device, self._way, operators)
            try:
                return recorder.run(partial(batches.call, model), sample)
            except Exception as error:
                require_plain_operators(error, type(model).__name__)
                mode = "training" if training else "evaluation"
                rows = batches.rows_of(batch)
                error.add_note(f"(raised in recording, in {mode} mode, on {rows} rows)")
                if isinstance(error, TypeError):
                    error.add_note(
                        "(the example's entries are the forward's arguments, those of a dict by "
                        "name: leave out what only the loss takes)"
                    )
                raise
            finally:
                self.edited |= operators.names()
                with torch.no_grad():
                    operators.put_back()

    def programs(self, *varied: _Varied) -> Programs:
        """Return the programs that hold for any rows, which come first, and any of these lengths.

        Each length was recorded with the other number of rows.
        """
        names = [ROWS, "length", *(f"length{n}" for n in range(2, len(varied)))]
        named = dict(zip(names, varied, strict=False))
        known = {name: each.known for name, each in named.items()}
        few = known | {ROWS: varied[0].other}
        sizes = [known, *(few | {name: each.other} for name, each in named.items())]
        recorded = [self._recorded, *(each.recorded for each in varied)]
        training, evaluation = (
            Unifier(sizes, programs, self._device).program()
            for programs in zip(*recorded, strict=True)
        )
        return training, evaluation

    def of_other_rows(self) -> tuple[_Varied, Programs]:
        """Record the example and another number of rows; return the programs that hold for both."""
        known, places = self._rows, batches.row_places(self._example)
        self._recorded = self.record(self._example)

        def of(other: int) -> tuple[_Varied, Programs]:
            recorded = self.record(batches.with_rows(self._example, other))
            rows = _Varied(places, known, other, recorded)
            return rows, self.programs(rows)

        few = 3 if known % 2 == 0 else 2  # so that what is the same for all even numbers is noticed
        if few < known:
            with suppress(Exception):  # whatever the model says of that batch
                return of(few)
        try:
            return of(known + 1)
        except NotRecordable:
            raise
        except Exception as error:
            raise NotRecordable(
                f"the model takes the example's {known} rows, and fails on {known + 1}, but "
                f"microbatches have other numbers of rows than a batch: let its forward take any. "
                f"Tensors of {known} entries count as rows: if one has none a row (positions, "
                f"say), give an example with another number of rows"
            ) from error

    def of_other_lengths(self, rows: _Varied) -> Iterator[_Varied]:
        """Yield the lengths that may vary; places with equal lengths have one."""
        groups: dict[int, dict[int, Places]] = {}  # by length, and how often its tensor had it
        for number, tensor in enumerate(tensors(self._example)):
            shape = list(tensor.shape)
            for dimension, length in enumerate(shape):
                if length > 1 and (dimension or length != rows.known):
                    before = shape[:dimension].count(length)
                    groups.setdefault(length, {}).setdefault(before, []).append((number, dimension))
        for length, places in groups.items():
            found = [self._length(rows, each, length) for each in places.values()]
            if not any(found) and len(places) > 1:  # both sides of a square, say
                found = [self._length(rows, [*chain.from_iterable(places.values())], length)]
            yield from filter(None, found)

    def _length(self, rows: _Varied, places: Places, known: int) -> _Varied | None:
        """Return a length with a recording of another one; None: the model wants this one."""
        shorter = [known // 2] if known > 3 else []
        is_image = any(tensors(self._example)[number].dim() > 3 for number, _ in places)
        longer = [2 * known] if self._goes_beyond and not is_image else []  # of images four times
        for other in [*shorter, *longer]:
            with suppress(Exception):  # whatever the model says of that batch
                sizes = dict.fromkeys(rows.places, rows.other) | dict.fromkeys(places, other)
                recorded = self.record(batches.resized(self._example, sizes))
                length = _Varied(places, known, other, recorded)
                self.programs(rows, length)
                return length
        return None

    def trial(self, programs: Programs, rows: _Varied, lengths: Sequence[_Varied]) -> Trial | None:
        """Return a batch for the programs, all of whose sizes differ from the recorded ones.

        If these are even, odd ones are tried first, by which is noticed what all even ones share.
        """
        some = [(0.75, 0), (1.5, 0), (1, 1)][: 3 if self._goes_beyond else 1]
        for other_parity, (times, plus) in product((True, False), some):
            chosen = [(each, each.near(times, plus, other_parity)) for each in lengths]
            if any(length in (1, each.known, each.other) for each, length in chosen):
                continue
            chosen.insert(0, (rows, rows.known + 2))
            sizes = dict(zip(programs[0].sizes, (size for _, size in chosen), strict=True))
            if not all(limit.at(sizes) for program in programs for limit in program.limits):
                continue
            places = {place: size for each, size in chosen for place in each.places}
            batch = batches.resized(self._example, places)
            with suppress(Exception):  # whatever it says of that batch
                with (
                    state_untouched(self._model),
                    weights_untouched(self._model, self.edited),
                    torch.no_grad(),
                ):
                    batches.call(self._model, batch)
                return Trial(sizes_text(sizes), batch)
        return None


def warn_of_hooks(model: nn.Module, wish: Wish | None) -> None:
    """Say which modules have hooks of which stages run no more than the operations on tensors."""
    blocks = Blocks(model, wish)
    hooked = [
        name
        for module, name in module_names(model).items()
        if module in blocks.outer and (module._forward_hooks or module._forward_pre_hooks)
    ]
    if hooked:
        warn(
            f"{', '.join(hooked)} has forward hooks outside the blocks: stages run again what they "
            f"do to tensors, and not what they print or keep. Register them on modules within "
            f"blocks, or name a module around them as a block by blocks=[...]"
        )
