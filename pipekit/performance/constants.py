"""What was fitted: at most two constants a machine, with the rows of measurements fitted on."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median

from pipekit.reading import read_json

_FORM = "pipekit constants 1"
_FILE = Path(__file__).with_name("constants.json")

FOLDER = "PIPEKIT_MEASURED"
"""The environment variable that names the folder of published measurements: none is kept here."""

NEW_DEVICE, DATA_SHEET = "new device", "data sheet"
"""Classes of trainings on a device of which no row was measured; and without inputs that a set
gives, if data sheets alone say much less there."""


def measurements() -> Path | None:
    """Return the folder of measurements that the environment names; None: there is none."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None


@dataclass(frozen=True)
class Constants:
    """How a machine falls short of its data sheet."""

    efficiency: float  # the share of the peak FLOP/s that large products reach
    overhead_s: float  # of the host for each kernel launch, or layer, whichever limits a framework


@dataclass(frozen=True)
class Fit:
    """Constants of a machine, and the row_ids by set that they were fitted on."""

    constants: Constants
    fitted_on: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Fits:
    """All that was fitted."""

    machines: Mapping[str, Fit]  # by framework and device, say "Megatron-Core on H100"
    # By set and class of its rows, the h for which 80 % of the measured step times are within a
    # factor of exp(h) of the predicted.
    half_widths: Mapping[str, Mapping[str, float]]

    def constants(self, machine: str) -> Constants:
        """Return a machine's constants, or the medians of its framework's on others, if any."""
        known = [fit.constants for fit in self._like(machine)]
        if not known:
            raise ValueError(f"nothing was fitted for {machine!r}: give its Constants yourself")
        return Constants(
            median(each.efficiency for each in known), median(each.overhead_s for each in known)
        )

    def half_width(self, machine: str, kind: str) -> float:
        """Return the half width of a class of trainings on a machine.

        It is the median, over the sets that the machine was fitted on, of that class or the widest;
        of another machine that of new devices in its framework's sets, or the widest.
        """
        names = {name for fit in self._like(machine) for name in fit.fitted_on}
        sets = [self.half_widths[name] for name in names & {*self.half_widths}]
        if machine in self.machines and sets:
            return median(widths.get(kind, max(widths.values())) for widths in sets)
        left_out = [widths[NEW_DEVICE] for widths in sets if NEW_DEVICE in widths]
        every = sets or self.half_widths.values()
        return max(left_out or (half for widths in every for half in widths.values()))

    def write(self) -> None:
        record = {"format": _FORM, **asdict(self)}
        _FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def _like(self, machine: str) -> list[Fit]:
        """Return the fit of a machine, or those of its framework on others."""
        framework = f"{machine.partition(' on ')[0]} on "
        alike = [fit for name, fit in self.machines.items() if name.startswith(framework)]
        return [self.machines[machine]] if machine in self.machines else alike


@cache
def fitted() -> Fits:
    """Return the committed fits."""
    return read_json(_FILE, Fits, "a file of fitted constants", _FORM, ("machines", "half_widths"))
