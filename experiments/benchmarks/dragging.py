"""Seconds from a key on a slider to the new picture in JupyterLab, and where they go.

    make chromium
    python -m experiments.benchmarks.dragging [--output FOLDER]

The timelines' explorer shows 5,120 passes with their transfers and memory.  A key makes all of them
last otherwise ("other costs"), or be others ("other schedule").  The clocks of page and kernel are
the machine's, so that a key is followed through both: the page sends the slider's message, the
kernel begins with it and sends the picture, the page has that and has painted it; then it asks why
there are gaps, and has painted that, too.  All are milliseconds since the key.
"""

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pandas as pd
import typer
from playwright.sync_api import Locator, expect

from experiments.benchmarks.harness import conclude, measured, show
from tests.browser.jupyterlab import CELLS_S, Lab, jupyterlab

NOTEBOOKS = Path(__file__).parents[2] / "notebooks" / "explore"
FRAGMENT = "#pipekit.explore.timeline?method=flush&beside=nothing&stages=8&batches=10"
LISTEN = """
window.messages = [];
window.WebSocket = class extends WebSocket {
    constructor(...how) {
        super(...how);
        this.addEventListener('message', event => this.note('received', event.data));
    }
    send(data) {
        this.note('sent', data);
        super.send(data);
    }
    note(way, data) {
        window.messages.push([way, performance.timeOrigin + performance.now(), data]);
    }
};
"""
"""Keep what passes between page and kernels, with its time, to be read later."""
READ = """() => window.messages.splice(0)
    .filter(([, , data]) => data instanceof ArrayBuffer)
    .map(([way, at, data]) => {
        const view = new DataView(data), decoder = new TextDecoder();
        const place = number => Number(view.getBigUint64(8 * (number + 1), true));
        const text = number => decoder.decode(data.slice(place(number), place(number + 1)));
        const {msg_type: kind, date} = JSON.parse(text(1)), {data: told} = JSON.parse(text(4));
        const what = `${told?.content ?? Object.keys(told?.state ?? {})}`;
        return {way, at, kind, date, what};
    })"""
"""See "v1.kernel.websocket.jupyter.org" in Jupyter Server's documentation."""
WAIT = """canvas => {
    const now = () => performance.timeOrigin + performance.now(), paints = [];
    let key = 0;
    window.messages = [];
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
REST_MS = 400
"""Without a message: then nothing is left to do."""


class Move(NamedTuple):
    """Keys that change the pictures in one way.

    Attributes:
        name: what is new with each.
        slider: where it is pressed.
        fragment: of a link to the setting before the first.
    """

    name: str
    slider: str
    fragment: str


MOVES = (
    Move("other costs", "backward : forward", f"{FRAGMENT}&microbatches=32&ratio=0.5"),
    Move("other schedule", "microbatches", f"{FRAGMENT}&microbatches=20"),
)


def main(
    output: Annotated[Path | None, typer.Option(help="folder for the tables")] = None,
    keys: Annotated[int, typer.Option(help="keys of each kind", min=1, max=12)] = 11,
) -> None:
    """Press keys on a slider, and follow each to its picture."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "there is no Chromium: make chromium"
    record = measured(keys=keys)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "notebooks"
        shutil.copytree(NOTEBOOKS, folder)
        with jupyterlab(folder, chromium, Path(scratch), LISTEN) as lab:
            lab.opened("timeline")
            rows = [row for move in MOVES for row in followed(lab, move, keys)]
    found = pd.DataFrame(rows)
    print("Milliseconds since the key (measured, medians)")
    show(found.groupby("new", sort=False).median().reset_index(), digits=3)
    conclude("dragging", found, record, output)


def followed(lab: Lab, move: Move, keys: int) -> Iterator[dict[str, Any]]:
    """Yield what happened when after each of some keys."""
    canvas = lab.front().locator(".pipekit-timeline > canvas").first
    lab.page.evaluate("hash => { location.hash = hash }", move.fragment)
    slider = lab.page.get_by_text(move.slider, exact=True)
    handle = lab.front().locator(".widget-hslider", has=slider).locator(".noUi-handle")
    explained(canvas)
    handle.press("ArrowRight")  # the first one finds nothing remembered
    explained(canvas)
    for _ in range(keys):
        come_to_rest(lab)
        canvas.evaluate(WAIT)
        handle.press("ArrowRight")
        seen = lab.page.evaluate("window.followed")
        moments = followed_through(seen, lab.page.evaluate(READ))
        bars = int(canvas.get_attribute("data-bars") or 0)
        yield {"new": move.name, "bars": bars} | {
            name: at - seen["key"] for name, at in moments.items()
        }


def come_to_rest(lab: Lab) -> None:
    count = -1
    while count != (count := lab.page.evaluate("window.messages.length")):
        lab.page.wait_for_timeout(REST_MS)


def followed_through(seen: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, float]:
    """Return when what has happened, in milliseconds of Unix time."""
    asked = next(each for each in messages if each["way"] == "sent" and each["what"] == "value")
    behind = [each for each in messages if each["at"] > asked["at"]]
    busy = next(each for each in behind if each["kind"] == "status")
    picture = next(each for each in behind if "picture" in each["what"])
    gaps = next(each for each in behind if each["way"] == "sent" and each["what"] == "why")
    why = next(each for each in behind if each["way"] == "received" and each["what"] == "why")
    painted = next(each["at"] for each in seen["paints"] if each["at"] > picture["at"])
    return {
        "sent": asked["at"],
        "kernel begins": unix_ms(busy),
        "picture leaves": unix_ms(picture),
        "picture is there": picture["at"],
        "painted": painted,
        "asked why": gaps["at"],
        "causes leave": unix_ms(why),
        "causes are there": why["at"],
        "explained": seen["paints"][-1]["at"],
    }


def unix_ms(message: dict[str, Any]) -> float:
    """Return when the kernel made a message."""
    return 1000 * datetime.fromisoformat(message["date"]).timestamp()


def explained(canvas: Locator) -> None:
    expect(canvas).to_have_attribute("data-explained", "true", timeout=1000 * CELLS_S)


if __name__ == "__main__":
    typer.run(main)
