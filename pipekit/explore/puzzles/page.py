"""The page of the puzzles: one HTML element, its style and its script, which need no kernel."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipekit.explore.browser.standalone import STYLES, embedded, script
from pipekit.explore.puzzles import data, diagnosis

HERE = Path(__file__).parent
MODULES = (
    *("tables", "problem", "clock", "kept", "bound", "moves", "recognise", "hints", "store"),
    *("elements", "board", "sandbox", "diagnosis", "game", "main"),
)
"""In an order in which none needs one that comes later."""
STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1100px; padding: 12px; font-family: system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
"""


def bundle(modules: Sequence[Path], name: str) -> str:
    """Return modules as one script that makes ``name``, the exports of the last of them.

    Browsers load no modules from a folder; so imports and exports become one function's names.
    """
    texts = [module.read_text(encoding="utf-8") for module in modules]
    exported = re.findall(r"^export (?:const|class|function) (\w+)", texts[-1], re.MULTILINE)
    code = re.sub(r"^import .*\n|^export ", "", "\n".join(texts), flags=re.MULTILINE)
    return f"const {name} = (() => {{\n{code}return {{ {', '.join(exported)} }};\n}})();\n"


def known() -> dict[str, Any]:
    """Return the page's data."""
    return {
        "rules": data.rules(),
        "levels": data.levels(),
        "sandbox": data.sandbox(),
        "trace": diagnosis.level(),
    }


def scripts() -> str:
    """Return the page's script: the timelines' canvas, the game, and its data."""
    game = bundle([HERE / f"{name}.js" for name in MODULES], "pipekitPuzzles")
    shown = f"const pipekitKnown = pipekitCanvas.revived({embedded(known())});\n"
    start = 'pipekitPuzzles.begin(pipekitKnown, document.getElementById("puzzles"));\n'
    return f"{script()}{game}{shown}{start}"


def styles() -> str:
    """Return the page's CSS."""
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
