"""``python -m pipekit.explore.puzzles``: write the page of the puzzles, and say where."""

from pathlib import Path

from pipekit.explore.puzzles.page import html

path = Path("puzzles.html").resolve()
path.write_text(html(), encoding="utf-8")
print(f"open {path.as_uri()} in a browser")
