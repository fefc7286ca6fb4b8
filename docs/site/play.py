"""A page on which a slider changes the microbatches of a schedule, without a kernel.

All pictures are made when the site is built; the page shows one of them.
"""

from pathlib import Path

from pipekit import plots
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from pipekit.traces import Trace, describe_bubbles

STAGES = 4
MICROBATCHES = range(1, 9)
SHOWN = ("model-parallel", "gpipe", "flush", "zb-h1", "pipedream")
"""From no pipeline at all to the schedules that leave the least idle."""

PAGE = """# A pipeline by its microbatches

Four stages, one worker each; a backward takes two slots, an update none (exact). With a notebook's
kernel, [the explorer](gallery/explore/timeline.ipynb) has every method, links, memory and measured
profiles; [the puzzles](gallery/explore/puzzles.ipynb) let you find these schedules and train
with them.

```{raw} html
<form id="play">
<label>Method <select name="method">METHODS</select></label>
<label>Microbatches <input name="count" type="range" min="FIRST" max="LAST" value="4"></label>
<output name="said"></output>
</form>
<noscript>Without JavaScript the page shows one picture only.</noscript>
<img id="played" src="_static/play/gpipe-4.svg" alt="the schedule's timeline" style="width: 100%">
<script>
const form = document.getElementById("play"), said = SAID;
function show() {
  const key = `${form.method.value}-${form.count.value}`;
  document.getElementById("played").src = `_static/play/${key}.svg`;
  form.said.value = `${form.count.value}: ${said[key]}`;
}
form.addEventListener("input", show);
show();
</script>
```
"""


def page(static: Path) -> str:
    """Write the pictures; return the page's text."""
    (static / "play").mkdir(parents=True, exist_ok=True)
    said = {}
    for name in SHOWN:
        for count in MICROBATCHES:
            counts = (1, count) if name in PER_MINIBATCH else (count, 1)
            trace = Trace.from_schedule(METHODS[name](STAGES, *counts))
            plots.save(plots.timeline(trace), static / "play" / f"{name}-{count}", trace.frame)
            (static / "play" / f"{name}-{count}.csv").unlink()
            said[f"{name}-{count}"] = describe_bubbles(trace.bubbles())
    names = {name: METHODS[name](STAGES, 4, 1).name for name in SHOWN}
    options = "".join(
        f'<option value="{name}"{" selected" * (name == "gpipe")}>{title}</option>'
        for name, title in names.items()
    )
    values = {
        "METHODS": options,
        "FIRST": str(MICROBATCHES[0]),
        "LAST": str(MICROBATCHES[-1]),
        "SAID": repr(said),
    }
    text = PAGE
    for word, value in values.items():
        text = text.replace(word, value)
    return text
