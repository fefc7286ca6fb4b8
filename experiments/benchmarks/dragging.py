"""Milliseconds from a key on a slider to the new picture in JupyterLab, and to the gaps' causes.

    make chromium
    python -m experiments.benchmarks.dragging [--output FOLDER]

The timelines' explorer shows 5,120 passes with their transfers and memory.  A key makes all of them
last otherwise ("other costs"), or be others ("other schedule").
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from playwright.sync_api import Locator, expect

from experiments.benchmarks.harness import conclude, measured, show
from tests.browser.jupyterlab import CELLS_S, Lab, chromium, jupyterlab

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "explore"
FRAGMENT = "#pipekit.explore.timeline?method=flush&beside=nothing&stages=8&batches=10"
WAIT = """canvas => {
    const now = () => performance.timeOrigin + performance.now(), paints = [];
    let key = 0;
    window.followed = new Promise(resolve => {
        document.addEventListener('keydown', event => {
            key = performance.timeOrigin + event.timeStamp;
        }, {once: true, capture: true});
        new MutationObserver((_, seen) => {
            const explained = canvas.dataset.explained === 'true';
            paints.push({at: now(), explained});
            if (!explained || !paints.some(each => !each.explained)) return;
            seen.disconnect();
            resolve({key, paints});
        }).observe(canvas, {attributes: true, attributeFilter: ['data-painted']});
    });
}"""
"""Follow the next key until its picture is painted with the gaps' causes, at first without."""
REST_MS = 400  # between two keys: then nothing is left to do


MOVES = {
    "other costs": ("backward : forward", f"{FRAGMENT}&microbatches=32&ratio=0.5"),
    "other schedule": ("microbatches", f"{FRAGMENT}&microbatches=20"),
}
"""By what is new with each key: the slider, and the link to the setting before the first."""


def main(
    output: Annotated[Path | None, typer.Option(help="folder for the tables")] = None,
    keys: Annotated[int, typer.Option(help="keys of each kind", min=1, max=12)] = 11,
) -> None:
    """Press keys on a slider, and follow each to its picture."""
    path = shutil.which("chromium")
    assert path is not None, "there is no Chromium: make chromium"
    record = measured(keys=keys)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "notebooks"
        shutil.copytree(NOTEBOOKS, folder)
        with chromium(path) as browser, jupyterlab(folder, browser, Path(scratch)) as lab:
            lab.opened("timeline")
            rows = [row for new in MOVES for row in followed(lab, new, keys)]
    found = pd.DataFrame(rows)
    print("Milliseconds since the key (measured, medians)")
    show(found.groupby("new", sort=False).median().reset_index(), digits=3)
    conclude("dragging", found, record, output)


def followed(lab: Lab, new: str, keys: int) -> Iterator[dict[str, Any]]:
    """Yield what happened when after each of some keys."""
    canvas = lab.front().locator(".pipekit-timeline > canvas").first
    name, fragment = MOVES[new]
    lab.page.evaluate("hash => { location.hash = hash }", fragment)
    slider = lab.page.get_by_text(name, exact=True)
    handle = lab.front().locator(".widget-hslider", has=slider).locator(".noUi-handle")
    explained(canvas)
    handle.press("ArrowRight")  # the first one finds nothing remembered
    explained(canvas)
    for _ in range(keys):
        lab.page.wait_for_timeout(REST_MS)
        canvas.evaluate(WAIT)
        handle.press("ArrowRight")
        seen = lab.page.evaluate("window.followed")
        yield {
            "new": new,
            "bars": int(canvas.get_attribute("data-bars") or 0),
            "painted": next(e["at"] for e in seen["paints"] if not e["explained"]) - seen["key"],
            "explained": seen["paints"][-1]["at"] - seen["key"],
        }


def explained(canvas: Locator) -> None:
    expect(canvas).to_have_attribute("data-explained", "true", timeout=1000 * CELLS_S)


if __name__ == "__main__":
    typer.run(main)
