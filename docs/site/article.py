"""The article "Why pipelines idle": its text, and the tables that its timelines show."""

from itertools import product
from pathlib import Path
from typing import Any

from pipekit.explore.browser.standalone import STYLES, embedded, script
from pipekit.explore.puzzles.data import rows, rules
from pipekit.explore.puzzles.page import HERE, bundle
from pipekit.schedules.methods.by_name import METHODS, batches_of

SHOWN = ("model-parallel", "gpipe", "flush", "zb-h1", "pipedream", "eager")
WORKERS, MICROBATCHES = range(2, 7), range(1, 9)
MODULES = ("tables", "problem", "clock", "picture", "elements", "article")
LOADED = """
```{raw} html
<link rel="stylesheet" href="_static/course/article.css">
<script src="_static/course/article.js"></script>
```
"""


def page(text: str, static: Path) -> str:
    """Write the article's script and style below ``static``; return its text."""
    folder = static / "course"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "article.js").write_text(scripts(), encoding="utf-8")
    (folder / "article.css").write_text(styles(), encoding="utf-8")
    return text + LOADED


def scripts() -> str:
    """Return the article's script."""
    code = bundle([HERE / f"{name}.js" for name in MODULES], "pipekitArticle")
    start = f"pipekitArticle.enliven({embedded(known())}, document);\n"
    return f"{script()}{code}{start}"


def styles() -> str:
    """Return the article's CSS."""
    own = Path(__file__).with_name("article.css")
    return STYLES.read_text(encoding="utf-8") + own.read_text(encoding="utf-8")


def known() -> dict[str, Any]:
    """Return the rules and, of each method shown, its tables by workers and microbatches."""
    methods = {
        name: {
            "name": METHODS[name](2, 1).name,
            "tables": {
                f"{p}/{m}": rows(batches_of(name, p, m, 1))
                for p, m in product(WORKERS, MICROBATCHES)
            },
        }
        for name in SHOWN
    }
    return {"rules": rules(), "methods": methods}
