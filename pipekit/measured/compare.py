"""Two explanations side by side: what changed, and by how much."""

from pipekit.measured.explanation import Explanation
from pipekit.measured.shares import SHARES

_SMALL = 0.001


def compared(before: Explanation, after: Explanation) -> str:
    """Return in words what changed from one trace to another, what changed most first.

    Args:
        before: of the first trace.
        after: of the second.
    """
    change = after.step_s - before.step_s
    lines = [
        f"A step takes {after.step_s * 1e3:.4g} ms after {before.step_s * 1e3:.4g} ms: "
        f"{change / before.step_s:+.1%}"
    ]
    one, other = before.recognition, after.recognition
    for name in "method", "stages", "workers", "microbatches":
        if getattr(one, name) != getattr(other, name):
            lines.append(f"{name}: {getattr(one, name)} -> {getattr(other, name)}")
    spent = {
        name: after.mean_shares[name] * after.step_s - before.mean_shares[name] * before.step_s
        for name in SHARES
    }
    for name, seconds in sorted(spent.items(), key=lambda item: -abs(item[1])):
        if abs(seconds) >= _SMALL * before.step_s:
            lines.append(f"{name.replace('_', ' ')} a worker: {seconds * 1e3:+.4g} ms a step")
    saved = [{cause.kind: cause.saves_s for cause in each.causes} for each in (before, after)]
    for kind in dict.fromkeys([*saved[0], *saved[1]]):
        was, now = (each.get(kind, 0.0) for each in saved)
        if abs(now - was) >= _SMALL * before.step_s:
            lines.append(f"{kind} costs {now * 1e3:.4g} ms a step after {was * 1e3:.4g} ms")
    return "\n".join(lines)
