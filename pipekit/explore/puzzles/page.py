"""The page of the puzzles: one HTML element, its style and its script, which need no kernel."""

import re
from pathlib import Path
from typing import Any

from pipekit.explore.browser.standalone import document, embedded, script
from pipekit.explore.puzzles import data, diagnosis

HERE = Path(__file__).parent
STYLE = HERE / "puzzles.css"
IMPORT = re.compile(r'^import .* from "\./(\w+)\.js";\n', re.MULTILINE)


def playing(module: str, call: str, known: Any) -> str:
    """Return a page's script: the timelines' canvas, a module, and the call that begins it.

    Browsers load no modules from a folder: imports and exports become names of one function.
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


def html() -> str:
    """Return a page that needs no other file."""
    shown = '<div id="puzzles" class="puzzles"></div>'
    return document("Pipeline puzzles", shown, scripts(), STYLE.read_text(encoding="utf-8"))


def _with_imports(module: str, found: dict[str, str]) -> dict[str, str]:
    """Return the texts of modules found, and of one more behind all that it imports."""
    text = (HERE / f"{module}.js").read_text(encoding="utf-8")
    for other in IMPORT.findall(text):
        found = found if other in found else _with_imports(other, found)
    return found | {module: text}
