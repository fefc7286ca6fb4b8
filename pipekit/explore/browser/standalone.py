"""The canvas of timelines on pages without a kernel."""

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = "pen.js", "paint.js", "canvas.js"
"""One module to the browser: pen and brush, the picture, and its answers to the reader."""
STYLES = HERE / "explore.css"


def script() -> str:
    """Return JavaScript that makes ``pipekitCanvas``, for pages that come from a folder.

    It is not a module, since browsers load none from a folder.
    """
    scripts = [(HERE / name).read_text(encoding="utf-8") for name in (*SCRIPTS, "standalone.js")]
    code = "\n".join(scripts).replace("export default { render };", "")
    return f"const pipekitCanvas = (() => {{\n{code}return {{ draw, revived }};\n}})();\n"


def embedded(shown: Any) -> str:
    """Return pictures as JSON, their columns as text, that may stand within a script."""
    return json.dumps(shown, default=_text).replace("</", "<\\/")


def page(title: str, style: str, body: str, shown: Sequence[Any]) -> str:
    """Return a page that needs no other file.

    Args:
        title: of the page, as text.
        style: CSS beside the canvas's own.
        body: HTML; the timelines are drawn into its element "shown".
        shown: of each timeline its picture and its reasons, as ``{"picture": ..., "why": ...}``.
    """
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>\n{STYLES.read_text(encoding='utf-8')}{style}</style>\n{body}\n"
        f"<script>\n{script()}\n"
        f"const shown = pipekitCanvas.revived({embedded(shown)});\n"
        f'pipekitCanvas.draw(shown, document.getElementById("shown"), []);\n</script>\n</html>\n'
    )


def _text(column: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(column).decode()}
