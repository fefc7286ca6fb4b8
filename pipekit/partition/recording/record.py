"""Record a module: it runs in both modes with batches of several sizes, and is left as it was."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from pipekit.layers.edited_tensors import WrittenTensors, weights_untouched
from pipekit.layers.module_state import in_evaluation, set_mode, state_untouched
from pipekit.layers.python_state import module_names
from pipekit.partition.recording import batch as batches
from pipekit.partition.recording.modules import Blocks, Wish
from pipekit.partition.recording.program import Program
from pipekit.partition.recording.recorded_model import RecordedModel, Trial
from pipekit.partition.recording.recorder import PLAIN, Recorder, Way
from pipekit.partition.recording.refusal import NotRecordable, require_plain_operators
from pipekit.partition.recording.templates import tensors
from pipekit.partition.recording.unify import ROWS, Sizes, Unifier, sizes_text

Programs = tuple[Program, Program]  # in training and in evaluation mode
Dimensions = list[tuple[int, int]]  # places of tensors in the batch, and dimensions of these


class _FreeLength(NamedTuple):
    dimensions: Dimensions
    known: int
    other: int
    recorded: Programs


def record(
    model: nn.Module, example: Any, wish: Wish | None = None, way: Way = PLAIN
) -> list[RecordedModel]:
    """Return a module as a row of layers; if some lengths may vary, the model with these first.

    It runs in both modes, on other numbers of rows, and on other lengths, each by itself.
    """
    forwards = _Forwards(model, example, wish, way)
    rows = forwards.rows
    with batches.left_as_it_was(model), batches.drawing_from_torch():
        recorded = forwards.record(example)
        few, others, programs = forwards.of_other_rows(recorded)
        trial = Trial(f"{rows + 2} rows", batches.with_rows(example, rows + 2))
        fixed = RecordedModel(model, programs, trial, way.traced, forwards.edited)
        free = list(forwards.free_lengths(few, others))
        if not free or (longer_or_shorter := forwards.trial(free)) is None:
            return [fixed]
        sizes = ["length", *(f"length{n}" for n in range(2, len(free) + 1))]
        known = {ROWS: rows, **{n: each.known for n, each in zip(sizes, free, strict=True)}}
        recordings = [(known, recorded), (known | {ROWS: few}, others)]
        for name, each in zip(sizes, free, strict=True):
            recordings.append((known | {ROWS: few, name: each.other}, each.recorded))
        try:
            programs = forwards.programs(*recordings)
        except NotRecordable:  # of several lengths together
            return [fixed]
    varying = RecordedModel(model, programs, longer_or_shorter, way.traced, forwards.edited)
    # Steps that ask for a length, of which no tensor tells at some cut, would close that cut.
    return [varying, fixed] if len(varying) == len(fixed) else [fixed]


class _Forwards:
    def __init__(self, model: nn.Module, example: Any, wish: Wish | None, way: Way) -> None:
        self.rows = batches.rows_of(example)
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
            written = WrittenTensors(model)
            recorder = Recorder(model, self._blocks.whole, self._device, self._way, written)
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
                self.edited |= written.names()
                with torch.no_grad():
                    written.put_back()

    def programs(self, *recordings: tuple[Sizes, Programs]) -> Programs:
        training, evaluation = (
            Unifier([(sizes, each[mode]) for sizes, each in recordings], self._device).program()
            for mode in (0, 1)
        )
        return training, evaluation

    def of_other_rows(self, recorded: Programs) -> tuple[int, Programs, Programs]:
        """Return another number of rows, its recordings, and the programs that hold for both."""
        rows = self.rows

        def of(other: int) -> tuple[int, Programs, Programs]:
            found = self.record(batches.with_rows(self._example, other))
            return other, found, self.programs(({ROWS: rows}, recorded), ({ROWS: other}, found))

        few = 3 if rows % 2 == 0 else 2  # so that what is the same for all even numbers is noticed
        if few < rows:
            with suppress(Exception):  # whatever the model says of that batch
                return of(few)
        try:
            return of(rows + 1)
        except NotRecordable:
            raise
        except Exception as error:
            raise NotRecordable(
                f"the model takes the example's {rows} rows, and fails on {rows + 1}, but "
                f"microbatches have other numbers of rows than a batch: let its forward take any. "
                f"Tensors of {rows} entries count as rows: if one has none a row (positions, say), "
                f"give an example with another number of rows"
            ) from error

    def free_lengths(self, few: int, recorded: Programs) -> Iterator[_FreeLength]:
        """Yield the lengths that may vary, with recordings of ``few`` rows, as ``recorded`` are."""
        small = batches.with_rows(self._example, few)
        places: dict[int, dict[int, Dimensions]] = {}  # by length, and how often its tensor had it
        for number, tensor in enumerate(tensors(self._example)):
            shape = list(tensor.shape)
            for dimension, length in enumerate(shape):
                if length > 1 and (dimension or length != self.rows):
                    before = shape[:dimension].count(length)
                    places.setdefault(length, {}).setdefault(before, []).append((number, dimension))
        for length, groups in places.items():
            found = [self._free(small, few, recorded, each, length) for each in groups.values()]
            if not any(found) and len(groups) > 1:  # both sides of a square, say
                together = [place for group in groups.values() for place in group]
                found = [self._free(small, few, recorded, together, length)]
            yield from filter(None, found)

    def _free(
        self, small: Any, rows: int, recorded: Programs, dimensions: Dimensions, known: int
    ) -> _FreeLength | None:
        """Return a length with a recording of another one; None: the model wants this one."""
        shorter = [known // 2] if known > 3 else []
        is_image = any(tensors(small)[number].dim() > 3 for number, _ in dimensions)
        longer = [2 * known] if self._goes_beyond and not is_image else []  # of images four times
        for other in [*shorter, *longer]:
            try:
                found = self.record(batches.resized(small, dict.fromkeys(dimensions, other)))
                sizes = {ROWS: rows, "length": known}
                self.programs((sizes, recorded), (sizes | {"length": other}, found))
            except Exception:  # whatever the model says of that batch
                continue
            return _FreeLength(dimensions, known, other, found)
        return None

    def trial(self, free: Sequence[_FreeLength]) -> Trial | None:
        """Return a batch that the model takes, all of whose sizes differ from the recorded ones."""
        rows = self.rows + 2
        for times, plus in [(0.75, 0), (1.5, 0), (1, 1)][: 3 if self._goes_beyond else 1]:
            lengths = [math.ceil(times * each.known) + plus for each in free]
            if any(n in (1, each.known, each.other) for n, each in zip(lengths, free, strict=True)):
                continue
            changed = {d: n for n, each in zip(lengths, free, strict=True) for d in each.dimensions}
            batch = batches.resized(batches.with_rows(self._example, rows), changed)
            with suppress(Exception):  # whatever it says of that batch
                with (
                    state_untouched(self._model),
                    weights_untouched(self._model, self.edited),
                    torch.no_grad(),
                ):
                    batches.call(self._model, batch)
                return Trial(sizes_text({ROWS: rows, **dict(enumerate(lengths))}), batch)
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
        warnings.warn(
            f"{', '.join(hooked)} has forward hooks outside the blocks: stages run again what they "
            f"do to tensors, and not what they print or keep. Register them on modules within "
            f"blocks, or name a module around them as a block by blocks=[...]",
            stacklevel=3,
        )
