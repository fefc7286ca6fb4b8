"""Draw README's badges from what they are about: ``python -m experiments.badges``."""

import tomllib
from html import escape
from pathlib import Path

import pandas as pd

from pipekit.names import METHODS

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/pictures/badges.svg"
HEIGHT_PX, CHARACTER_PX, PAD_PX, GAP_PX = 20, 6.6, 7, 6
NAME, VALUE = "#4a4a4a", "#005a8c"
"""White text on both has more than 4.5:1."""


def facts() -> dict[str, str]:
    """Return the badges' names and values, read off the files that say so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scores = pd.read_csv(ROOT / "results/reference/papers/scores.csv", index_col="paper")
    return {
        "python": project["requires-python"],
        "license": project["license"],
        "methods": str(len(METHODS)),
        "papers' claims": str(int(scores.loc["all", "claims"])),
    }


def picture() -> str:
    """Return the badges, side by side, as SVG."""
    x, parts = 0.0, []
    for name, value in facts().items():
        for text, color in ((name, NAME), (value, VALUE)):
            width = CHARACTER_PX * len(text) + 2 * PAD_PX
            parts.append(
                f'<rect x="{x:.1f}" width="{width:.1f}" height="{HEIGHT_PX}" fill="{color}"/>'
                f'<text x="{x + width / 2:.1f}" y="14">{escape(text)}</text>'
            )
            x += width
        x += GAP_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - GAP_PX:.0f}" height="{HEIGHT_PX}" '
        'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="white" '
        f'text-anchor="middle">\n{chr(10).join(parts)}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
