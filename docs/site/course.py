"""The course: the puzzles' page, played on the site without a kernel."""

from pathlib import Path

from pipekit.explore.puzzles.page import scripts, styles

PAGE = """# A course in puzzles

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
which trains a network with it. [A page a method](/methods/index.md) has the costs of each.
"""


def page(static: Path) -> str:
    """Write the page's script and style below ``static``; return its text."""
    folder = static / "course"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "puzzles.js").write_text(scripts(), encoding="utf-8")
    (folder / "puzzles.css").write_text(styles(), encoding="utf-8")
    return PAGE
