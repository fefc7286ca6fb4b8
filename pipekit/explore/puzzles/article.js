// An article's page: sliders within the text, timelines between paragraphs, and numbers that follow.

import { timed, makespan } from "./clock.js";
import { element } from "./elements.js";
import { number, percent, picture, why } from "./picture.js";
import { problemOf } from "./problem.js";

export function enliven(data, page) { // the page's spans "knob", divs "live" and spans "value"
  const knobs = [...page.querySelectorAll(".knob")].map((span) => knob(span, changed));
  const now = Object.fromEntries(knobs.map(({ name, value }) => [name, value]));
  const figures = [...page.querySelectorAll(".live")].map((box) => ({ box, models: [] }));
  const values = [...page.querySelectorAll(".value")];
  let asked = false;

  function changed(name, value) {
    now[name] = value;
    for (const each of knobs) if (each.name === name) each.show(value);
    if (asked) return;
    asked = true; // however often a slider moves between two frames, draw once
    requestAnimationFrame(() => { asked = false; draw(); });
  }

  function draw() {
    const began = performance.now();
    for (const { box, models } of figures) redrawn(data, box, models, now);
    for (const each of values) each.textContent = evaluated(each.dataset, now);
    performance.measure("pipekit article", { start: began, end: performance.now() });
  }

  draw();
}

function knob(span, changed) {
  const { name, min, max, step = 1 } = span.dataset, value = Number(span.textContent), shown = element("b", {}, span.textContent);
  const input = element("input", {
    type: "range", min, max, step, value, "aria-label": span.title, oninput: () => changed(name, Number(input.value)),
  });
  span.replaceChildren(input, shown);
  return { name, value, show: (next) => { input.value = next; shown.textContent = next; } };
}

function redrawn(data, box, models, now) { // methods one under another, on one axis of time
  const { p, m, b, l, u } = now, { methods, link, slow } = box.dataset;
  const costs = { opSlots: { F: 1, B: b, I: b / 2, W: b / 2 }, link: link ? l : 0, workers: slow ? { [slow]: u } : {} };
  const runs = methods.split(" ").map((key) => {
    const { name, tables } = data.methods[key], problem = problemOf({ rows: tables[`${p}/${m}`], ...costs }, data.rules);
    return { name, problem, clock: timed(problem, problem.best) };
  });
  const span = Math.max(...runs.map(({ clock }) => makespan(clock)));
  const shown = runs.map(({ name, problem, clock }) => ({ picture: picture(problem, clock, name, span), why: why(problem, clock) }));
  pipekitCanvas.draw(shown, box, models);
  for (const model of models) model.set("colored", box.dataset.colored ?? "op");
}

function evaluated({ formula, unit }, now) { // our own formulas, of the sliders' letters
  const value = new Function(...Object.keys(now), `return ${formula}`)(...Object.values(now));
  return unit === "%" ? percent(value) : number(value);
}
