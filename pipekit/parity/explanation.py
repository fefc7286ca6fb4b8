"""Which hypotheses explain the parameters that disagree, by as few of them as can be."""

from pipekit.parity import faults
from pipekit.parity.evidence import Evidence
from pipekit.parity.hypotheses import Hypothesis, hypotheses
from pipekit.parity.observed import Entry
from pipekit.parity.verdict import Finding


def explained(e: Evidence) -> list[Finding]:
    """Return one finding for each group of wrong entries that have a common explanation."""
    if not e.wrong:
        return []
    known = [(h, {i for i, entry in enumerate(e.wrong) if _explains(e, h, entry)}) for h in hypotheses(e)]
    left, findings = set(range(len(e.wrong))), []
    while left:
        most = max((len(covered & left) for _, covered in known), default=0)
        names = lambda chosen: tuple(dict.fromkeys(e.wrong[i].name for i in sorted(chosen)))
        if not most:
            findings.append(Finding((faults.UNKNOWN,), (_direction(e, left),), names(left)))
            break
        best = [(h, covered & left) for h, covered in known if len(covered & left) == most]
        group = best[0][1]
        alike = [h for h, covered in best if covered == group]
        findings.append(_finding(e, alike, names(group)))
        left -= group
    return findings


def _explains(e: Evidence, h: Hypothesis, entry: Entry) -> bool:
    return (h.entries is None or entry.name in h.entries) and e.agrees(entry, h.predicts)


def _finding(e: Evidence, alike: list[Hypothesis], names: tuple[str, ...]) -> Finding:
    special = [h for h in alike if h.entries is not None]
    stale = [h for h in alike if 0 < h.behind <= e.observed.stated.stale]
    chosen: dict[str, str] = {}
    for h in stale or special or alike:
        chosen.setdefault(h.fault, h.detail)
    return Finding(tuple(chosen), tuple(chosen.values()), names, excused=bool(stale))


def _direction(e: Evidence, left: set[int]) -> str:
    """Return how far the first update is from the right one, as a share of its size."""
    wrong, right, product = 0.0, 0.0, 0.0
    for i in left:
        value, wanted = e.wrong[i].values[0], e.right(0)[e.wrong[i].name]
        wrong += float(((value - wanted) ** 2).sum())
        right += float((wanted**2).sum())
        product += float((value * wanted).sum())
    if not right:
        return "where the plain loop has no gradient"
    return f"first update x {product / right:.4g} along the right one, {(wrong / right) ** 0.5:.3g} of its size off"
