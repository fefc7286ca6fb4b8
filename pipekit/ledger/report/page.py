"""The report's page: a card a claim, by paper and figure, that needs nothing but itself."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, groupby, zip_longest
from itertools import count as count_up
from pathlib import Path
from re import match

from pipekit.host.provenance import LABELS
from pipekit.ledger.ledger import Claim
from pipekit.ledger.outcomes import CAUSE_UNKNOWN, MEANING, Outcome, Status, count, summaries
from pipekit.ledger.report.links import links
from pipekit.ledger.report.scoreboard import template
from pipekit.ledger.report.tables import changes, experiments, frame, kinds, scores

TITLES = {
    "pipedream": "PipeDream",
    "gpipe": "GPipe",
    "torchgpipe": "torchgpipe",
    "pipedream-2bw": "PipeDream-2BW and PipeDream-Flush",
    "megatron": "Megatron-LM's interleaved schedule",
}

FIRST_FIGURES = 10
"""Of the first screen."""

_MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Group:
    """Claims of a paper that share a figure's file or, without one, their place in the paper."""

    anchor: str
    figure: Path | None
    outcomes: tuple[Outcome, ...]

    @property
    def source(self) -> str:
        """The figure as a data URI: an image of its own, so that ids of two SVGs cannot clash."""
        if self.figure is None:
            return ""
        data = base64.b64encode(self.figure.read_bytes()).decode()
        return f"data:{_MEDIA[self.figure.suffix]};base64,{data}"

    @property
    def paper(self) -> str:
        """The paper of its claims."""
        return self.outcomes[0].claim.paper

    @property
    def heading(self) -> str:
        """The tables and figures that its claims stand at, or else the first one's place."""
        found = dict.fromkeys(_place(outcome.claim) for outcome in self.outcomes)
        named = [place for place in found if place.startswith(("Figure", "Table"))]
        return ", ".join(named or list(found)[:1])

    def count(self, status: Status) -> int:
        """Return how many of its claims have a status."""
        return sum(outcome.status is status for outcome in self.outcomes)

    @property
    def decided(self) -> int:
        """How many of its claims passed or missed."""
        return self.count(Status.PASS) + self.count(Status.MISS)


def destination(folder: Path) -> Path:
    """Return the folder that gets the report: a run's own, the newest run's of many, or itself.

    A run is a folder with ``provenance.json``, as :func:`pipekit.ledger.batches.batch.run` leaves
    it.
    """
    if (folder / "provenance.json").exists():
        return folder
    runs = sorted(path.parent for path in folder.glob("*/provenance.json"))
    return runs[-1] if runs else folder


def write(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write ``report.html``, and as CSV report, scores, kinds and what_if; return the first.

    The page loads neither from a network nor a file; its links lead to the run's own files.
    """
    groups, tried = _groups(outcomes), experiments(outcomes)
    page = template("page.html.j2").render(
        papers={paper: [*own] for paper, own in groupby(groups, lambda group: group.paper)},
        telling=telling(group for group in groups if group.figure),
        causes=_causes(outcomes),
        what_if=changes(tried).to_dict("records"),
        summaries=summaries(outcomes),
        counts=count(outcomes),
        kinds=kinds(outcomes).to_dict("records"),
        runs=_runs(outcomes),
        links={o.claim.id: links(o.record, folder) for o in outcomes if o.record is not None},
        meaning=MEANING,
        labels={label: what for label, what in LABELS.items() if label != "paper"},
        titles=TITLES,
        recorded=sum(outcome.record is not None for outcome in outcomes),
        total=len(outcomes),
        utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    html = folder / "report.html"
    html.write_text(page, encoding="utf-8")
    frame(outcomes).to_csv(folder / "report.csv", index=False)
    scores(outcomes).to_csv(folder / "scores.csv", index=False)
    kinds(outcomes).to_csv(folder / "kinds.csv", index=False)
    tried.to_csv(folder / "what_if.csv", index=False)
    return html


def telling(figures: Iterable[Group]) -> list[Group]:
    """Return the figures of the first screen: those that decide most claims, papers in turn."""
    decisive = sorted(figures, key=lambda figure: -figure.decided)
    papers = dict.fromkeys(figure.paper for figure in decisive)
    each = ([figure for figure in decisive if figure.paper == paper] for paper in papers)
    return [figure for figure in chain(*zip_longest(*each)) if figure][:FIRST_FIGURES]


def _groups(outcomes: Iterable[Outcome]) -> list[Group]:
    """Return the groups in the order in which the papers make their first claims."""
    shared: dict[tuple[str, Path | str], list[Outcome]] = {}
    for outcome in outcomes:
        together = _figure(outcome) or _place(outcome.claim)
        shared.setdefault((outcome.claim.paper, together), []).append(outcome)
    numbers, groups = count_up(1), []
    for (_, together), having in shared.items():
        figure = together if isinstance(together, Path) else None
        groups.append(Group(f"figure-{next(numbers)}" if figure else "", figure, tuple(having)))
    return groups


def _causes(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Return the misses by their cause, the commonest first, those without one last."""
    causes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.cause:
            causes.setdefault(outcome.cause, []).append(outcome)
    order = sorted(causes, key=lambda cause: (cause == CAUSE_UNKNOWN, -len(causes[cause])))
    return {cause: causes[cause] for cause in order}


def _place(claim: Claim) -> str:
    """Return the section, table or figure that a claim is listed under."""
    found = match(r"Abstract|§\d+(\.\d+)*|(Figure|Table) \d+|Appendix", claim.where)
    return found.group() if found else claim.where


def _figure(outcome: Outcome) -> Path | None:
    """Return the file of the figure that a claim's record names, if it is there."""
    if outcome.record is None or outcome.record.figure is None:
        return None
    path = outcome.record.folder / Path(outcome.record.figure).name
    return path if path.suffix in _MEDIA and path.exists() else None


def _runs(outcomes: Iterable[Outcome]) -> list[str]:
    records = [outcome.record for outcome in outcomes if outcome.record is not None]
    return sorted({record.folder.parent.name for record in records})
