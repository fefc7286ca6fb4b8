"""Parts of checkpoints that somebody has damaged, mixed up or made: none may pass for the real one.

Each try copies a folder with two checkpoints of a training, changes something in the newer one, and
resumes and trains to the end.  Right is: a warning that names the damaged file, and the older
checkpoint in its place, to the bits of the whole training; or an error that names the file, or the
checkpoint where all of its files look well by themselves.  Whatever is in the files, nothing of it
is executed, nothing outside of the folder changes, and nobody waits.

Who can write files with the right checksum can make weights up; the tries "made" do so and must
only come to an end in one of these ways, or train.
"""

import faulthandler
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from experiments.attacks import crafted
from experiments.attacks.interrupts import batches, network
from pipekit import Checkpoints, Pipeline, schedules

LIMIT_S = 120.0  # a try takes a tenth of a second; only a hang lasts so long
EARLIER, NAMED, UNHARMED, MADE = "earlier one used", "refused by name", "unharmed", "trained"
"""What comes of a try."""


def pipeline(loss: nn.Module | None = None) -> Pipeline:
    return Pipeline(
        network(),
        schedules.two_bw(2, 2),
        balance=[3, 3],
        optimizer=partial(torch.optim.Adam, lr=0.01),
        loss=loss or nn.MSELoss(),
    )


class Way(NamedTuple):
    """What is done, what may come of it, and how often it is tried beside the others."""

    do: Callable[[crafted.Attacked], None]
    right: tuple[str, ...]
    share: int = 1


WAYS: dict[str, Way] = {
    "bits flipped": Way(crafted.flip_bits, (EARLIER,), 4),
    "cut short": Way(crafted.cut_short, (EARLIER,), 2),
    "lengthened": Way(crafted.lengthen, (EARLIER,)),
    "a block of zeros": Way(crafted.blank, (EARLIER, UNHARMED)),
    "contents exchanged": Way(crafted.exchange, (EARLIER,)),
    "part of another boundary": Way(crafted.of_another_boundary, (NAMED,)),
    "part of another training": Way(crafted.of_another_training, (NAMED,)),
    "part of another training, attempt forged": Way(crafted.of_another_training_renamed, (NAMED,)),
    "part in another's place": Way(crafted.in_anothers_place, (NAMED,), 2),
    "one part twice": Way(crafted.twice, (NAMED,)),
    "a pipe": Way(crafted.a_pipe, (NAMED,)),
    "a folder": Way(crafted.a_folder, (NAMED,)),
    "a device": Way(crafted.a_device, (NAMED,)),
    "a link to nothing": Way(crafted.a_link_to_nothing, (NAMED, UNHARMED)),
    "a link to another file": Way(crafted.a_link_to_a_file, (NAMED, EARLIER)),
    "odd names": Way(crafted.odd_names, (UNHARMED,)),
    "a folder that leads elsewhere": Way(crafted.a_folder_that_leads_elsewhere, (NAMED,)),
    "a lock that leads elsewhere": Way(crafted.a_lock_that_leads_elsewhere, (NAMED, UNHARMED)),
    "code": Way(crafted.code, (NAMED,), 6),
    "TorchScript": Way(crafted.a_program, (NAMED,)),
    "no checkpoint": Way(crafted.no_checkpoint, (NAMED,), 2),
    "made: bytes": Way(crafted.bytes_changed, (NAMED, MADE, UNHARMED), 4),
    "made: values": Way(crafted.values_changed, (NAMED, MADE, UNHARMED), 10),
}


class Row(NamedTuple):
    """A try: what was done, what came of it, and what is wrong with that."""

    way: str
    outcome: str
    failure: str
    said: str


class Trainings:
    """The trainings whose checkpoints are attacked.

    Args:
        folder: gets them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        whole = pipeline()
        whole.train(batches())
        self._bits = whole.state_dict()
        for name, loss in (("own", nn.MSELoss()), ("other", nn.L1Loss())):
            pipeline(loss).train(batches(), checkpoints=Checkpoints(folder / name, every=1, keep=3))
            shutil.rmtree(max((folder / name).glob("batch-*")))  # as if it had been cut off

    def tried(self, way: str, seed: int) -> Row:
        """Make one try."""
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            place = Path(scratch)
            (place / "precious").write_text("nobody writes here")
            for name in ("own", "other"):
                shutil.copytree(self._folder / name, place / name)
            older, home = sorted((place / "own").glob("batch-*"))[-2:]
            other = max((place / "other").glob("batch-*"))
            attacked = crafted.Attacked(random.Random(seed), home, older, other, place / "ran")
            WAYS[way].do(attacked)
            outcome, failure, said = self._resumed(attacked)
            if not failure and outcome not in WAYS[way].right:
                failure = f"{outcome}: {said}"
            if attacked.canary.exists():
                failure = "executed"
            if (place / "precious").read_text() != "nobody writes here":
                failure = "another file was written to"
            if way == "a folder that leads elsewhere" and not (place / "precious.tmp").exists():
                failure = "another file was deleted"
            return Row(way, outcome, failure, said.replace(scratch, "..."))

    def _resumed(self, attacked: crafted.Attacked) -> tuple[str, str, str]:
        """Resume and train to the end; return outcome, failure and message."""
        folder = attacked.home.parent
        names = {path.name for path in (*folder.iterdir(), *attacked.home.iterdir())}
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                again = pipeline()
                again.resume(folder)
                again.train(batches(), checkpoints=Checkpoints(folder, every=1))
            except Exception as error:
                said = " ".join([str(error), *getattr(error, "__notes__", [])])
                if "weights_only" in said:
                    return NAMED, "it recommends to run what is in the file", said
                named = any(name in said for name in names)
                return NAMED, "" if named else f"no file is named: {error!r}", said
            finally:
                faulthandler.cancel_dump_traceback_later()
        said = " ".join(str(warning.message) for warning in caught)
        bits = again.state_dict()
        equal = all(torch.equal(bits[name], tensor) for name, tensor in self._bits.items())
        if not equal:
            return MADE, "", said
        return (EARLIER if any(name in said for name in names) else UNHARMED), "", said


def attack(tries: int, seed: int) -> Iterator[Row]:
    """Yield a row for each of so many tries."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as folder:
        trainings = Trainings(Path(folder))
        order = [name for name, way in WAYS.items() for _ in range(way.share)]
        for number in range(tries):
            yield trainings.tried(order[number % len(order)], draw.getrandbits(32))
