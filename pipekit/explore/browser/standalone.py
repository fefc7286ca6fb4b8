"""The canvas of timelines on pages without a kernel."""

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipekit.explore.browser.picture import explained, picture
from pipekit.traces import Trace

HERE = Path(__file__).parent
SCRIPTS = "pen.js", "paint.js", "canvas.js"
"""One module to the browser: pen and brush, the picture, and its answers to the reader."""
STYLES = HERE / "explore.css"
STYLE = """
:root { color-scheme: light dark; --jp-layout-color0: Canvas; --jp-layout-color1: Canvas;
  --jp-ui-font-color1: CanvasText; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
body { margin: 0 auto; max-width: 1280px; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #8886; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def script() -> str:
    """Return JavaScript that makes ``pipekitCanvas``; browsers load no modules from a folder."""
    scripts = [(HERE / name).read_text(encoding="utf-8") for name in (*SCRIPTS, "standalone.js")]
    code = "\n".join(scripts).replace("export default { render };", "")
    return f"const pipekitCanvas = (() => {{\n{code}return {{ draw, revived }};\n}})();\n"


def embedded(shown: Any) -> str:
    """Return pictures as JSON, their columns as text, that may stand within a script."""
    return json.dumps(shown, default=_text).replace("</", "<\\/")


def page(title: str, traces: Sequence[Trace], above: str = "", below: str = "") -> str:
    """Return a page with traces on one scale of time; ``above`` and ``below`` them stands HTML."""
    longest = max(trace.makespan_s for trace in traces)
    shown = [
        {"picture": picture(trace, longest=longest), "why": explained(trace, longest=longest)}
        for trace in traces
    ]
    given = f"pipekitCanvas.revived({embedded(shown)})"
    start = f'pipekitCanvas.draw({given}, document.getElementById("shown"), []);\n'
    return document(title, f'{above}<div id="shown"></div>\n{below}', f"{script()}{start}")


def document(title: str, main: str, script: str, style: str = "") -> str:
    """Return a page that needs no other file, for wide screens and phones."""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>\n{STYLES.read_text(encoding='utf-8')}{STYLE}{style}</style>\n"
        f"<main><h1>{escape(title)}</h1>\n{main}</main>\n<script>\n{script}</script>\n</html>\n"
    )


def _text(column: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(column).decode()}
