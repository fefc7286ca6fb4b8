"""The verdict: whether a trainer is right, and which class of fault explains what is not."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pipekit.parity.observed import TOLERANCE

LOSS = 1e-4  # relative tolerance of a reported loss: some trainers round it


@dataclass(frozen=True)
class Finding:
    """One fault, or several that cannot be told apart.

    Attributes:
        classes: of fault.
        said: in words, one for each class.
        parameters: in which it is; empty: in none that has a name.
        excused: whether it is no fault, since the adapter states that it is meant.
    """

    classes: tuple[str, ...]
    said: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    excused: bool = False

    def __str__(self) -> str:
        words = [f"{c} ({s})" if s else c for c, s in zip(self.classes, self.said, strict=True)]
        text = ", or ".join(dict.fromkeys(words))
        if len(set(self.classes)) > 1:
            text += "; these cannot be told apart here"
        if self.parameters:
            shown = ", ".join(self.parameters[:4]) + (", ..." if len(self.parameters) > 4 else "")
            text += f"; in {len(self.parameters)}: {shown}"
        return ("no fault: " if self.excused else "fault: ") + text


@dataclass(frozen=True)
class Ratio:
    """A parameter beside the plain loop's.

    Attributes:
        after_one: how many times the plain loop's change it has changed in one step.
        after_three: likewise in three.
        ulps: the largest difference of an update; None: of one that is random.
        right: whether every update agrees.
    """

    after_one: float
    after_three: float
    ulps: float | None
    right: bool


@dataclass(frozen=True)
class Verdict:
    """What the judge says.

    Attributes:
        ok: whether there is no fault.
        classes: the classes of fault, and of what the adapter states itself; all that fit, if
            several cannot be told apart.
        parameters: each one's ratios.
        findings: the faults in full.
        remarks: what could not be judged.
        model: the model's name in the suite.
        tolerance: in ulps.
    """

    ok: bool
    classes: tuple[str, ...]
    parameters: dict[str, Ratio]
    findings: tuple[Finding, ...]
    remarks: tuple[str, ...]
    model: str
    tolerance: float = TOLERANCE

    @classmethod
    def of(
        cls,
        findings: Sequence[Finding],
        parameters: dict[str, Ratio],
        remarks: Sequence[str],
        model: str,
    ) -> "Verdict":
        """Return the verdict of some findings."""
        ok = all(finding.excused for finding in findings)
        classes = tuple(dict.fromkeys(c for finding in findings for c in finding.classes))
        return cls(ok, classes, parameters, tuple(findings), tuple(remarks), model)

    @property
    def text(self) -> str:
        """The verdict in lines: faults, remarks and a table of parameters."""
        head = f"{self.model}: WRONG: {', '.join(self.classes)}"
        if self.ok:
            largest = max((r.ulps or 0.0 for r in self.parameters.values()), default=0.0)
            said = "but for what follows" if self.findings else f"within {largest:.2g} ulps"
            head = f"{self.model}: right: {len(self.parameters)} parameters, {said}"
        lines = [head, *(f"  {finding}" for finding in self.findings)]
        lines += [f"  not judged: {remark}" for remark in self.remarks]
        columns = f"  {'parameter':24} {'x after 1':>10} {'x after 3':>10} {'ulps':>10}"
        lines.append(f"{columns}  (tolerance {self.tolerance:g})")
        lines += [
            f"  {name:24} {r.after_one:10.4f} {r.after_three:10.4f} "
            f"{'-' if r.ulps is None else format(r.ulps, '.3g'):>10}"
            f"{'' if r.right else '  <- differs'}"
            for name, r in self.parameters.items()
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self) | {"text": self.text}, indent=2)
