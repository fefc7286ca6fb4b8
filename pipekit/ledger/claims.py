"""Write what a notebook found about the papers' claims, and read it back."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipekit.choices import meant
from pipekit.host.provenance import provenance
from pipekit.ledger.ledger import Claim, load
from pipekit.ledger.outcomes import OURS, Cause, Outcome, Record, judge
from pipekit.ledger.spread import Error
from pipekit.reading import first_fault, parse_json, read_text

__all__ = ["Cause", "Claim", "load", "outcomes", "record"]

FILE = "claims.jsonl"  # the name of the file of records in a notebook's folder of results


def record(
    id: str,
    value: Any,
    label: str,
    *,
    results_dir: str | Path,
    note: str = "",
    figure: str | None = None,
    repeats: Sequence[Any] = (),
    invalid: str = "",
    shown: str = "",
    shown_only: str = "",
    causes: Sequence[Cause] = (),
    contradiction: str = "",
    known_error: Error = 0.0,
    **extra: Any,
) -> Outcome:
    """Write our value of a claim, with its provenance, to ``<results_dir>/claims.jsonl``.

    It returns the claim's outcome, which is computed from the newest value whenever it is shown.

    Args:
        id: a claim of ``data/claims.csv``.
        value: a number, a truth value, a text, or a list of these; what the claim's ``record``
            says, or its ``quantity`` in its ``unit``.
        label: "measured", "emulated", "simulated" or "exact".
        results_dir: the notebook's folder of results; made if it is missing.
        note: what a reader must know, say the reason looked for when it misses.
        figure: the name of an .svg or .png file in ``results_dir`` to show with the claim.
        repeats: all values of which ``value`` is the mean or median, each of its shape; a criterion
            within their spread leaves the claim undecided (:mod:`pipekit.ledger.spread`).
        invalid: why the value says nothing, say an emulation that its host was too slow for.
        shown: ours in the paper's own terms, say a plan, where ``value`` is another quantity.
        shown_only: why the value is shown but not judged, say that it rests on the claim itself.
        causes: the experiments made to explain a miss, see :attr:`Outcome.cause`.
        contradiction: the two numbers of the paper that exclude each other, with their places.
        known_error: by what part of itself a number may be wrong because of how it was found, of
            each or of all; a criterion within that leaves the claim undecided.
        extra: further provenance, say ``seed``, or the ``notebook`` (its path below ``notebooks/``,
            without suffix) and its ``function`` that found the value.

    Raises:
        ValueError: the claim, label, value or figure is none; the message names the remedy.
    """
    if id not in load():
        hint = meant(id, load()) or "; see the column id of data/claims.csv"
        raise ValueError(f"no claim is named {id!r}{hint}")
    folder = Path(results_dir)
    if figure is not None:
        if Path(figure).name != figure or Path(figure).suffix not in (".svg", ".png"):
            raise ValueError(f"figure must be the name of an .svg or .png file, not {figure!r}")
        if not (folder / figure).exists():
            raise ValueError(f"no figure is named {figure} in {folder}: save it before recording")
    if label not in OURS:
        raise ValueError(
            f"label must be one of {', '.join(OURS)}, not {label!r}: a record is our own value"
        )
    try:
        entry = Record(
            id=id,
            value=value,
            repeats=tuple(repeats),
            invalid=invalid,
            shown=shown,
            shown_only=shown_only,
            causes=tuple(causes),
            contradiction=contradiction,
            known_error=known_error,
            note=note,
            figure=figure,
            provenance=provenance(label, **extra),
            folder=folder.resolve(),
        )
    except ValidationError as error:
        raise ValueError(f"{id}: {first_fault(error)}") from None
    line, outcome = entry.model_dump_json(), judge(load()[id], entry)  # or refused: nothing written
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    return outcome


def outcomes(folder: str | Path, paper: str | None = None) -> list[Outcome]:
    """Judge claims, all or a ``paper``'s, by their newest records in a ``folder`` or any below it.

    Raises:
        ValueError: there is no such folder, or a record in it cannot be read.
    """
    if not Path(folder).is_dir():
        raise ValueError(
            f"no folder is named {folder}: run an experiment first, e.g. pipekit run "
            f"experiments/quickstart.yaml; pipekit claim --list has the values of the repository"
        )
    # Sorted by time and then as written: of two records of one second, the later line is newer.
    records = sorted(_read(Path(folder)), key=lambda record: record.provenance["utc"])
    newest = {record.id: record for record in records}
    asked = [claim for claim in load().values() if paper in (None, claim.paper)]
    return [judge(claim, newest.get(claim.id)) for claim in asked]


def _read(folder: Path) -> Iterator[Record]:
    claims = load()
    for path in sorted(folder.rglob(FILE)):
        parent = path.parent.resolve()
        # Notes may hold what splitlines() takes for the end of a line.
        for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
            try:
                record = parse_json(line, Record)
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number} is not a record, delete it: {error}"
                ) from None
            if record.id not in claims:
                raise ValueError(f"{path}, line {number}: the ledger has no claim {record.id!r}")
            yield record.model_copy(update={"folder": parent})
