"""What a notebook found, for its first screen: three sentences, tables, and a card a claim."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipekit.ledger.outcomes import CAUSE_UNKNOWN, Outcome, Status
from pipekit.ledger.report.printed import causes_of, ours, printed_tables
from pipekit.units import plural

TITLES = {
    "pipedream": "PipeDream",
    "gpipe": "GPipe",
    "torchgpipe": "torchgpipe",
    "pipedream-2bw": "PipeDream-2BW and PipeDream-Flush",
    "megatron": "Megatron-LM's interleaved schedule",
    "pipeoffload": "PipeOffload",
    "seq1f1b": "Seq1F1B",
    "bpipe": "BPipe",
    "adapipe": "AdaPipe",
}

NAMED_CAUSES = 3  # in the sentence of causes; the others are counted


def scoreboard(outcomes: Iterable[Outcome]) -> str:
    """Return the recorded claims as HTML for a notebook's output, in its colours, light or dark."""
    every = [*outcomes]
    recorded, tables = [o for o in every if o.record is not None], printed_tables(every)
    inside = {cell.claim.id for table in tables for cell in table.cells}
    others = [outcome for outcome in recorded if outcome.claim.id not in inside]

    def having(*statuses: Status) -> list[Outcome]:
        return [each for status in statuses for each in others if each.status is status]

    groups = {
        "missed or undecided": having(Status.MISS, Status.UNDECIDED, Status.INVALID),
        "met": having(Status.PASS),
        Status.REFUTED.counted: having(Status.REFUTED),
        "not judged": having(Status.REPORTED, Status.PRESET, Status.OUT_OF_REACH),
        "cells of the tables": [each for each in recorded if each.claim.id in inside],
    }
    return str(
        template("scoreboard.html.j2").render(
            sentences=sentences(recorded),
            tables=tables,
            ours=ours,
            causes_of=causes_of,
            titles=TITLES,
            groups={name: members for name, members in groups.items() if members},
            unknown=CAUSE_UNKNOWN,
        )
    )


def sentences(recorded: Sequence[Outcome]) -> list[str]:
    """Return what was found in three sentences: how many are met, why others miss, and by what."""
    if not recorded:
        return []
    statuses = Counter(outcome.status for outcome in recorded)
    counts = [f"{statuses[each]} {each.counted}" for each in Status if statuses[each]]
    causes = Counter(outcome.cause for outcome in recorded if outcome.cause)
    unknown = causes.pop(CAUSE_UNKNOWN, 0)
    commonest = causes.most_common(NAMED_CAUSES)
    reasons = [f"{cause} ({plural(number, 'claim')})" for cause, number in commonest]
    if rarer := len(causes) - len(commonest):
        reasons.append(plural(rarer, "other cause"))
    if unknown:
        reasons.append(f"no experiment has found it ({plural(unknown, 'claim')})")
    labels = Counter(outcome.record.label for outcome in recorded if outcome.record)
    return [
        f"Of {plural(len(recorded), 'claim')}: {', '.join(counts)}.",
        f"The cause of misses: {'; '.join(reasons)}." if reasons else "Nothing misses.",
        f"Our values are {', '.join(f'{label} ({n})' for label, n in labels.most_common())}.",
    ]


def template(name: str) -> Any:
    """Return a template beside this file, by name; what is put into HTML is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".j2"),  # not CSS, nor script
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
