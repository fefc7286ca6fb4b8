"""Pages that play without a kernel: the puzzles, and the article "Why pipelines idle"."""

from itertools import product
from pathlib import Path

from pipekit.explore.browser.standalone import STYLES
from pipekit.explore.puzzles import page as game
from pipekit.explore.puzzles.data import rows, rules
from pipekit.schedules.methods.by_name import METHODS, batches_of

STYLE = Path(__file__).with_name("article.css")
ARTICLE = ("model-parallel", "gpipe", "flush", "zb-h1", "pipedream", "eager")
"""The methods of the article's timelines, by so many workers and microbatches."""
WORKERS, MICROBATCHES = range(2, 7), range(1, 9)
PUZZLES_PAGE = """# A course in puzzles

Find the methods yourself, from no pipeline at all to a zero bubble. Each level gives the tasks of a
method, a worker a row: press a task to place it at the end of its row, press a placed one to take
it back. A forward takes a slot and a whole backward two; `I` and `W` are a backward's halves, `^`
is an update. Keys: arrows choose a worker, a task's letter places it, `Z` undoes, `H` hints.

```{raw} html
<link rel="stylesheet" href="../_static/course/puzzles.css">
<div id="puzzles" class="puzzles"><noscript>The puzzles need JavaScript.</noscript></div>
<script src="../_static/course/puzzles.js"></script>
```

**Copy as text** takes your order to [a schedule of your own](/gallery/explore/own_schedule.ipynb),
which trains a network with it. [Which method, when](/methods/index.md) has the costs of each.
"""
ARTICLE_END = """
```{raw} html
<link rel="stylesheet" href="_static/course/article.css">
<script src="_static/course/article.js"></script>
```
"""


def pages(article: str, static: Path) -> dict[str, str]:
    """Write scripts and styles below ``static``; return the pages' texts, given the article's."""
    folder = static / "course"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "puzzles.js": game.scripts(),
        "puzzles.css": styles(game.STYLE),
        "article.js": timelines(),
        "article.css": styles(),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return {
        "course/index": PUZZLES_PAGE,
        "why_pipelines_idle": article + ARTICLE_END,
    }


def styles(own: Path = STYLE) -> str:
    """Return the canvas's CSS, with that of the article, or of the puzzles."""
    return STYLES.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def timelines() -> str:
    """Return the script of the article: its methods' tables by workers and microbatches."""
    counts = [*product(WORKERS, MICROBATCHES)]
    methods = {
        name: {
            "name": METHODS[name](2, 1).name,
            "tables": {f"{p}/{m}": rows(batches_of(name, p, m, 1)) for p, m in counts},
        }
        for name in ARTICLE
    }
    known = {"rules": rules(), "methods": methods}
    return game.playing("article", "enliven(known, document)", known)
