"""A page on which the timelines' explorer is alive without a kernel.

What the explorer shows for some settings is computed when the site is built; the page shows it on
the same canvas.  Nothing is fetched from elsewhere, and the page works from a folder, too.
"""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from pipekit import plots
from pipekit.explore import timeline
from pipekit.explore.browser.picture import explained, picture
from pipekit.explore.browser.standalone import HERE, embedded, script
from pipekit.explore.page.view import Timeline
from pipekit.schedules.methods.by_name import METHODS

STAGES = (2, 4, 8)
MICROBATCHES = (4, 8, 16)
LINKS = {"free": timeline.FREE, "10 Gbit/s": 10.0}
BATCHES = 2
BEGIN = {"method": "flush", "beside": "gpipe", "stages": 4, "microbatches": 8, "link": "free"}

PAGE = """# Explore a timeline

Two methods on the same stages, a worker each, simulated; a forward takes 10 ms, a backward 20 ms.
Hovering a pass or a gap says what it is; a click says why, all the way back. Below each row lies
what the worker keeps. In a notebook, [the explorer](gallery/explore/timeline.ipynb) has every
number of stages, unequal ones, networks with their own costs, recomputation and a third method;
[the puzzles](course/index.md) let you find these schedules yourself.

```{raw} html
BODY
```
"""

BODY = """<link rel="stylesheet" href="_static/play/explore.css">
<link rel="stylesheet" href="_static/play/play.css">
<form id="play">MENUS</form>
<p id="told" role="status">The page is waiting for its script.</p>
<div id="shown"></div>
<noscript><p>Without JavaScript the page shows one picture only.</p>
<img src="_static/play/begin.svg" alt="BEGIN" style="width: 100%"></noscript>
<script src="_static/play/canvas.js"></script>
<script src="_static/play/play.js"></script>"""


def page(static: Path) -> str:
    """Write what the page shows; return its text."""
    return PAGE.replace("BODY", body(static))


def body(static: Path) -> str:
    """Write what the page shows below ``static``; return its HTML."""
    folder, own = static / "play", Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    for name, shown in pictures().items():
        written = f"pipekitPictures({json.dumps(name)}, {embedded(shown)});\n"
        (folder / f"{name}.js").write_text(written, encoding="utf-8")
    (folder / "canvas.js").write_text(script(), encoding="utf-8")
    (folder / "explore.css").write_text((HERE / "explore.css").read_text(encoding="utf-8"))
    for name in ("play.js", "play.css"):
        (folder / name).write_text((own / name).read_text(encoding="utf-8"))
    begin = timeline.see(BEGIN["method"], BEGIN["beside"], stages=4, microbatches=8).timelines
    figure = plots.compare(*(each.trace for each in begin))
    (folder / "begin.svg").write_text(plots.svg(figure, "begin"), encoding="utf-8")
    return BODY.replace("MENUS", menus()).replace("BEGIN", " beside ".join(t.name for t in begin))


def menus() -> str:
    """Return the page's menus."""
    titles = {name: make(4, 8).title for name, make in METHODS.items()}
    menus: dict[str, Mapping[Any, str]] = {
        "method": titles,
        "beside": {"nothing": "nothing", **titles},
        "stages": {number: str(number) for number in STAGES},
        "microbatches": {number: str(number) for number in MICROBATCHES},
        "link": {name: name for name in LINKS},
    }
    found = ""
    for name, options in menus.items():
        shown = "".join(
            f'<option value="{value}"{" selected" * (value == BEGIN[name])}>{title}</option>'
            for value, title in options.items()
        )
        found += f'<label>{name} <select name="{name}">{shown}</select></label>\n'
    return found


def pictures() -> dict[str, dict[str, Any]]:
    """Return what is shown of each method by stages, microbatches and link, joined by ``/``.

    All methods of a setting have one scale of time and one of bytes.  A method that cannot be had
    so has the sentence that says why.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in METHODS}
    for stages, microbatches, (link, gbit) in product(STAGES, MICROBATCHES, LINKS.items()):
        key, runs = f"{stages}/{microbatches}/{link}", dict[str, Timeline]()
        for name in METHODS:
            setting = {"stages": stages, "microbatches": microbatches, "batches": BATCHES}
            try:
                view = timeline.see(name, timeline.NOTHING, gbit=gbit, **setting)
            except ValueError as error:
                found[name][key] = str(error)
            else:
                runs[name] = view.timelines[0]
        longest = max(run.trace.makespan_s for run in runs.values())
        most_bytes = max(run.most_bytes for run in runs.values())
        for name, run in runs.items():
            shown = picture(run.trace, run.notes, longest=longest, most_bytes=most_bytes)
            found[name][key] = {"picture": shown, "why": explained(run.trace, longest=longest)}
    return found
