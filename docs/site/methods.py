"""A page a method: picture, when to use it, table, and words; and what all of them cost."""

import inspect
import re
from pathlib import Path

import costs
import pandas as pd

from pipekit import plots, schedules
from pipekit.schedules.methods.by_name import PER_MINIBATCH, TABLES
from pipekit.traces import Trace, describe_bubbles

DRAWN = 4, 8  # workers and microbatches of the pictures

WORK = (
    f"The same model on {costs.WORKERS} equal workers, {costs.MICROBATCHES} microbatches a batch, "
    "a forward one slot and a backward two"
)
_FORMS = {True: "{:z.1f}", False: "{:z.3g}"}  # of a column of shares, and of any other
BATCHES = {"2bw": 2, "pipefisher": 2}  # that show what is new; of others one is enough


def page(name: str, guide: str, folder: Path) -> str:
    """Return a method's page, its links as in the guide; its picture is written into a folder."""
    workers, microbatches = DRAWN
    batches = microbatches if name in PER_MINIBATCH else BATCHES.get(name, 1)
    schedule = TABLES[name](workers=workers, microbatches=microbatches).take(batches)
    trace, checked = Trace.from_schedule(schedule), schedules.check(schedule)
    picture = plots.save(plots.timeline(trace), folder / name, trace.frame)["svg"]
    text = [f"# {schedule.title}", f"![{schedule.title}](/methods/{picture.name})"]
    text += [
        f"{describe_bubbles(trace.bubbles()).capitalize()}; at most, a worker: weight slots "
        f"{', '.join(map(str, checked.peak_versions))}; microbatches in flight "
        f"{', '.join(map(str, checked.peak_in_flight))} (exact)."
    ]
    text += guided(name, guide)
    text += ["## The table", f"```text\n{schedule}\n```"]
    stem = {"2bw": "two_bw"}.get(name, name.replace("-", "_"))
    words = inspect.getdoc(getattr(schedules, stem, schedules.pipedream)) or ""
    text += ["## In words", words.partition("\n\nArgs")[0]]
    return "\n\n".join(text) + "\n"


def choice(all_costs: pd.DataFrame, guide: str) -> str:
    """Return the page on which method to use: all of them beside one another."""
    shown = all_costs.sort_values([costs.OLD, costs.IDLE, costs.KEPT], kind="stable")
    names = [f"[{title(name)}](/methods/{name}.md)" for name in shown.index]
    advice = [when(name, guide) for name in shown.index]
    meaning = "\n".join(f"- **{column}**: {what}" for column, what in costs.MEANING.items())
    return "\n\n".join(
        [
            "# Which method, when",
            "Less is better in all columns but the last. Methods that compute what ordinary "
            "training computes come first, and of these the ones whose workers wait least.",
            markdown(_numbers(shown, names)),
            f"{WORK} (exact, but for links). A backward's two halves are taken to be no longer "
            f"than the whole: of small layers they are, and all of ZB's methods pay. A chunk of a "
            f"sequence has its share of a microbatch's costs; moves to the host and gathers of "
            f"weights take no time, as long as passes hide them.\n\n{meaning}",
            "Your own stages, links and memory change the order: `pk.plan`, `pk.simulate` and "
            "`pk.search` answer for them ([how](cost.md)).",
            "## In a sentence",
            markdown(pd.DataFrame({"method": names, "when to use it": advice})),
        ]
    )


def guided(name: str, guide: str) -> list[str]:
    """Return the guide's rows on a method, each below the head of its table."""
    head = re.compile(rf"\| (?:{re.escape(title(name))}|`{name.replace('-', '_')}\(.*\)`) \|")
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", guide, re.MULTILINE)]
    found = [(table[:2], row) for table in tables for row in table if head.match(row)]
    return ["\n".join([*above, row]) for above, row in found]


def when(name: str, guide: str) -> str:
    """Return when to use a method, as the guide has it."""
    row = next(row for row in guided(name, guide) if "| when to use it |" in row)
    return row.rpartition(f"| {title(name)} | ")[2].rstrip(" |")


def title(name: str) -> str:
    """Return a method's name as the papers write it."""
    return TABLES[name](4, 8).name


def markdown(frame: pd.DataFrame) -> str:
    """Return a table in Markdown, without its index."""
    cells = frame.map(lambda cell: str(cell).replace("|", "\\|"))
    lines = [list(map(str, frame.columns)), ["---"] * frame.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _numbers(shown: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    texts = shown.apply(lambda column: column.map(_FORMS["%" in str(column.name)].format))
    texts.insert(0, "method", names)
    return texts
