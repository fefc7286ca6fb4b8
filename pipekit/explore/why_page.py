"""An explanation as a page of its own: text, the recorded step, and the step without a cause."""

from html import escape
from itertools import islice

from pipekit.explore.browser.standalone import page
from pipekit.measured.causes import BETWEEN_STEPS
from pipekit.measured.explanation import Explanation
from pipekit.measured.what_if import AGAIN, WAITING

_DRAWN = 3  # causes; what lies between steps moves no pass of one


def html(explanation: Explanation) -> str:
    """Return the page; it needs no other file."""
    said = "\n".join(f"<p>{escape(line)}</p>" for line in str(explanation).splitlines()[1:])
    causes = "\n".join(
        f"<tr><td>{escape(each.kind)}</td><td>{escape(each.text)}</td>"
        f'<td class="number">{each.saves_s * 1e3:.1f}</td>'
        f'<td class="number">{each.saves_s / explanation.step_s:.1%}</td></tr>'
        for each in explanation.causes
    )
    parts = {name: f"of waiting: {name}" for name in WAITING} | {AGAIN: f"of compute: {AGAIN}"}
    spent = "\n".join(
        f"<tr><td>{parts.get(name, name).replace('_', ' ')}</td>"
        f'<td class="number">{share:.1%}</td></tr>'
        for name, share in explanation.mean_shares.items()
    )
    above = f"""<p><b>{escape(str(explanation.recognition))}</b></p>
{said}
<h2>What would save how much</h2>
<table><tr><th>cause</th><th>what</th><th>saves (ms a step)</th><th>of a step</th></tr>
{causes}</table>
<h2>Passes as recorded, and without a cause</h2>
"""
    below = f"<h2>Where all workers' time went</h2>\n<table>{spent}</table>"
    moving = (cause for cause in explanation.distinct() if cause.kind != BETWEEN_STEPS)
    traces = [explanation.timeline(), *map(explanation.timeline, islice(moving, _DRAWN))]
    return page(explanation.trace.name, traces, above, below)
