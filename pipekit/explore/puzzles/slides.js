// Slides for a lecture: a timeline that goes on by a key, from one task's end to the next.

import { makespan, timed } from "./clock.js";
import { element, pressed } from "./elements.js";
import { picture, why } from "./picture.js";
import { problemOf } from "./problem.js";

export function lecture(data, page) {
  const [slide, state] = (location.hash.match(/\d+/g) ?? [1, 1]).map((each) => Number(each) - 1);
  const at = { slide: Math.max(0, Math.min(data.slides.length - 1, slide)), state: Math.max(0, state ?? 0) };
  const heading = element("h2"), note = element("p", { role: "status" }), box = element("div", { class: "live" });
  const count = element("span"), step = (way) => go(at.slide, at.state + way);
  const buttons = element("div", { class: "actions" }, pressed("◀", () => step(-1), { "aria-label": "state before" }),
    pressed("▶", () => step(1), { "aria-label": "next state" }), count);
  page.replaceChildren(heading, note, box, buttons);
  let shown = -1, models = [], ends = [];

  function go(number, state) { // beyond a slide's last state lies the next slide
    if (state < 0) return number ? go(number - 1, Infinity) : undefined;
    if (number === shown && state >= ends.length) return number + 1 < data.slides.length ? go(number + 1, 0) : undefined;
    Object.assign(at, { slide: number });
    if (number !== shown) open(number);
    at.state = Math.min(state, ends.length - 1);
    const { title, notes } = data.slides[number], all = at.state === ends.length - 1;
    for (const model of models) model.set("until", all ? -1 : ends[at.state]);
    heading.textContent = title;
    note.textContent = all ? notes[1] : notes[0];
    count.textContent = `slide ${number + 1} of ${data.slides.length}, state ${at.state + 1} of ${ends.length}`;
    history.replaceState(null, "", `#${number + 1}.${at.state + 1}`);
    return undefined;
  }

  function open(number) {
    const runs = data.slides[number].methods.map(({ name, rows }) => {
      const problem = problemOf({ rows }, data.rules);
      return { name, problem, clock: timed(problem, problem.best) };
    });
    const span = Math.max(...runs.map(({ clock }) => makespan(clock)));
    ends = [...new Set(runs.flatMap(({ clock }) => [...clock.end.values()]))].sort((a, b) => a - b);
    pipekitCanvas.draw(runs.map(({ name, problem, clock }) => ({ picture: picture(problem, clock, name, span), why: why(problem, clock) })), box, models);
    shown = number;
  }

  document.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1, PageDown: 1, PageUp: -1, " ": 1 }[event.key];
    if (!way || event.defaultPrevented || event.target.matches("input, select, textarea, button")) return;
    event.preventDefault();
    step(way);
  });
  go(at.slide, at.state);
}
