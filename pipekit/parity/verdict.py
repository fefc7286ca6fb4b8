"""The verdict: whether a trainer is right, and which class of fault explains what is not."""

import json
from dataclasses import asdict, dataclass

TOLERANCE = 32  # ulps; a correct float32 loop differs by three at most (docs/gradients.md)
LOSS = 1e-4  # relative tolerance of a reported loss: some trainers round it


class Fault:
    """The classes of fault, as a verdict names them."""

    SUMMED = "summed where averaged"
    AVERAGED_TWICE = "averaged twice"
    TIMES_STAGES = "multiplied by stages"
    ONCE_A_STAGE = "scaled once a stage"
    SCALED = "multiplied by a constant"
    ONLY_LAST = "only the last microbatch"
    ONLY_FIRST = "only the first microbatch"
    MICROBATCHES = "microbatches lost or repeated"
    PER_MICROBATCH = "normalised by tokens of the microbatch"
    TERMS = "normalised by another number of tokens"
    EACH_MICROBATCH = "an update after each microbatch"
    SEVERAL_BATCHES = "an update after several batches"
    MISSING = "a stage's layers missing"
    ORDER = "layers in another order"
    NEVER = "never updated"
    LOST = "weight gradient lost"
    LATE = "weight gradient applied an update late"
    TIED_ONCE = "tied weights summed once"
    TIED_TWICE = "tied weights summed twice"
    STALE = "stale by {}"
    CLIPPED_BY_STAGE = "clipped by a stage's own norm"
    CLIPPED = "clipped"
    DROPOUT = "other dropout"
    KEPT = "gradients kept from the batch before"
    MOMENTUM = "momentum"
    DECAY = "weight decay"
    RATE = "learning rate"
    OPTIMIZER = "another optimizer"
    TARGETS = "targets of other rows"
    OTHER_LOSS = "another loss"
    HANDED = "tensors of another microbatch between layers"
    CUT = "gradient lost between layers"
    MIXED = "gradients of other parameters"
    PLACES = "numbers in other places"
    EARLIER_BATCH = "the batch before"
    AUXILIARY = "auxiliary loss weighted otherwise"
    FROZEN = "frozen part updated"
    RANKS = "ranks differ"
    BATCH_NORM = "batch norm statistics"
    LOSS = "reported loss"
    START = "begins with other weights"
    ROUNDED = "lower precision"
    NOT_FINITE = "not finite"
    BACKWARD = "another backward"
    FORWARD = "another forward"
    UNKNOWN = "class unknown"


@dataclass(frozen=True)
class Finding:
    """One fault, or several that cannot be told apart."""

    classes: tuple[str, ...]  # of fault
    said: tuple[str, ...]  # in words, one for each class
    parameters: tuple[str, ...] = ()  # in which it is; empty: in none that has a name
    excused: bool = False  # whether it is no fault, since the adapter states that it is meant

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
    """A parameter beside the plain loop's."""

    after_one: float  # how many times the plain loop's change it has changed in one step
    after_three: float  # likewise in three
    ulps: float | None  # the largest difference of an update; None: of one that is random
    right: bool  # whether every update agrees


@dataclass(frozen=True)
class Verdict:
    """What the judge says."""

    model: str  # of the suite
    parameters: dict[str, Ratio]
    findings: tuple[Finding, ...] = ()  # the faults, and what the adapter states itself, in full
    remarks: tuple[str, ...] = ()  # what could not be judged

    @property
    def ok(self) -> bool:
        return all(finding.excused for finding in self.findings)

    @property
    def classes(self) -> tuple[str, ...]:
        """Of all findings; all that fit, if several cannot be told apart."""
        return tuple(dict.fromkeys(c for finding in self.findings for c in finding.classes))

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
        lines.append(f"{columns}  (tolerance {TOLERANCE})")
        lines += [
            f"  {name:24} {r.after_one:10.4f} {r.after_three:10.4f} "
            f"{'-' if r.ulps is None else format(r.ulps, '.3g'):>10}"
            f"{'' if r.right else '  <- differs'}"
            for name, r in self.parameters.items()
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return everything as JSON."""
        said = {"ok": self.ok, "classes": self.classes, "tolerance": TOLERANCE, "text": self.text}
        return json.dumps(asdict(self) | said, indent=2)
