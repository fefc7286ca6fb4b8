"""Slides for a lecture: timelines that go on by a key, in the browser or as SVG, a file a state."""

from pathlib import Path
from typing import Any

from article import styles

from pipekit.explore.browser.standalone import embedded, script
from pipekit.explore.puzzles.data import rows, rules
from pipekit.explore.puzzles.page import HERE, bundle
from pipekit.schedules.methods.by_name import batches_of

MODULES = ("tables", "problem", "clock", "picture", "elements", "slides")
SLIDES = (
    ("One at a time", ["model-parallel"], "Who works while the first worker does?", "One of four."),
    ("GPipe", ["gpipe"], "When can the last worker begin?", "Idle: (p-1)/(m+p-1), 3 of 7 slots."),
    ("1F1B", ["gpipe", "flush"], "Which worker is first to free memory?", "As fast, fewer kept."),
    ("ZB-H1", ["flush", "zb-h1"], "What could fill the last gaps?", "W waits for no one."),
    ("PipeDream", ["pipedream"], "Which weights does F3 read?", "No flush, older weights."),
)
"""Title, methods on four workers with four microbatches, a question, and its answer at the end."""
PAGE = """# Slides

A key a state: arrow right goes on to the next task's end, arrow left back. The arrows below do the
same on a phone. `SVG` below a timeline saves the state that is shown.

```{raw} html
<link rel="stylesheet" href="../_static/course/article.css">
<div id="lecture" class="slides"></div>
<script src="../_static/course/slides.js"></script>
```
"""


def page(static: Path) -> str:
    """Write the page's script and style below ``static``; return its text."""
    folder = static / "course"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "slides.js").write_text(scripts(), encoding="utf-8")
    (folder / "article.css").write_text(styles(), encoding="utf-8")
    return PAGE


def scripts() -> str:
    """Return the page's script."""
    code = bundle([HERE / f"{name}.js" for name in MODULES], "pipekitSlides")
    start = f'pipekitSlides.lecture({embedded(known())}, document.getElementById("lecture"));\n'
    return f"{script()}{code}{start}"


def known() -> dict[str, Any]:
    """Return the rules and the slides."""
    slides = [
        {"title": title, "notes": notes, "methods": [_method(name) for name in names]}
        for title, names, *notes in SLIDES
    ]
    return {"rules": rules(), "slides": slides}


def _method(name: str) -> dict[str, Any]:
    schedule = batches_of(name, 4, 4, 1)
    return {"name": schedule.name, "rows": rows(schedule)}
