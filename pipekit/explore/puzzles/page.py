"""The page of the puzzles: one HTML element, its style and its script, which need no kernel."""

import re
from pathlib import Path
from typing import Any

from pipekit.explore.browser.standalone import STYLES, embedded, script
from pipekit.explore.puzzles import data, diagnosis

HERE = Path(__file__).parent
IMPORT = re.compile(r'^import .* from "\./(\w+)\.js";\n', re.MULTILINE)
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1100px; padding: 12px; font-family: system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
"""


def playing(module: str, call: str, known: Any) -> str:
    """Return a page's script: the timelines' canvas, a module, and the call that begins it.

    Browsers load no modules from a folder: imports and exports become names of one function, which
    has the data as ``known``.
    """
    texts = "\n".join(_with_imports(module, {}).values())
    code = re.sub("^export ", "", IMPORT.sub("", texts), flags=re.MULTILINE)
    given = f"pipekitCanvas.revived({embedded(known)})"
    return f"{script()}((known) => {{\n{code}{call};\n}})({given});\n"


def scripts() -> str:
    """Return the puzzles' script."""
    known = {
        "rules": data.rules(),
        "levels": data.levels(),
        "sandbox": data.sandbox(),
        "trace": diagnosis.level(),
    }
    return playing("game", 'new Game(known, document.getElementById("puzzles"))', known)


def styles() -> str:
    """Return the puzzles' CSS."""
    return "".join(path.read_text(encoding="utf-8") for path in (STYLES, HERE / "puzzles.css"))


def html() -> str:
    """Return a page that needs no other file."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Pipeline puzzles</title>\n<style>\n{STYLE}{styles()}</style>\n"
        '<main><h1>Pipeline puzzles</h1><div id="puzzles" class="puzzles"></div></main>\n'
        f"<script>\n{scripts()}</script>\n</html>\n"
    )


def _with_imports(module: str, found: dict[str, str]) -> dict[str, str]:
    """Return the texts of modules found, and of one more behind all that it imports."""
    text = (HERE / f"{module}.js").read_text(encoding="utf-8")
    for other in IMPORT.findall(text):
        found = found if other in found else _with_imports(other, found)
    return found | {module: text}
