// The board as a picture: a row a worker, a bar a task, the waits between them, and the tasks that can come next.

import { element, pressed } from "./elements.js";
import { inFlight } from "./kept.js";
import { cell, title, told } from "./tables.js";

const AIR = 1.2; // time shown, in that of the best order known

export function drawn(problem, rows, clock, choices, marks, act) {
  const { level } = problem, last = Math.max(...rows.flat().map(({ id }) => clock.end.get(id)), 0);
  const shown = Math.max(level.slots * AIR, last + 1);
  const at = (time) => `${(100 * time) / shown}%`;
  const goal = element("div", { class: "goal", style: `left: ${at(level.slots)}`, title: `${level.slots} slots, ${level.label}` });
  const lanes = rows.map((row, worker) => {
    const bars = row.map((task, place) => bar(problem, task, clock, at, marks, () => act.take(worker, place)));
    const refused = marks.refused?.worker === worker ? [ghost(problem, marks.refused, row, clock, at)] : [];
    return element("div", { class: "row", role: "group", "aria-label": `worker ${worker}` },
      element("div", { class: "name" }, `worker ${worker}`, kept(problem, row, worker)),
      element("div", { class: "lane" }, ...waits(problem, row, clock, at), ...bars, ...refused),
      tray(problem, choices[worker], marks, act));
  });
  const ticks = Array.from({ length: Math.floor(shown / 5) + 1 }, (_, n) => (
    element("span", { style: `left: ${at(5 * n)}` }, `${5 * n}`)));
  const isWide = problem.best.flat().some(({ op }) => problem.rules.ops[op].stream);
  return element("div", { class: `board${isWide ? " wide" : ""}` },
    ...lanes, element("div", { class: "axis", "aria-hidden": "true" }, ...ticks, goal));
}

function bar(problem, task, clock, at, marks, take) {
  const { start, end, exact } = clock, [from, to] = [start.get(task.id), end.get(task.id)];
  const classes = ["task", kind(problem, task), exact.has(task.id) ? "" : "early", marks.tasks?.includes(task) ? "fault" : ""];
  const when = exact.has(task.id) ? `slots ${from} to ${to}` : "waits for a task that is not placed yet";
  const says = `${told(task)}, ${when}; press to take it back`;
  return pressed(text(problem, task), take, {
    class: classes.join(" "), title: says, "aria-label": says,
    style: `left: ${at(from)}; width: ${at(to - from)}`,
  });
}

const kind = (problem, { op }) => `${op} ${problem.rules.ops[op].stream && "beside"}`;

function text(problem, task) {
  const several = problem.best[task.worker].some(({ stage }) => stage !== task.stage);
  return element("span", {}, problem.rules.ops[task.op].isPass ? title(task) : "^", several ? element("sub", { "data-stage": task.stage }) : "");
}

function waits(problem, row, clock, at) { // the gaps between passes, as far as they are certain
  let free = 0;
  return row.filter(({ op }) => !problem.rules.ops[op].stream).flatMap((task) => {
    const from = free, to = clock.start.get(task.id);
    free = clock.end.get(task.id);
    if (to <= from || !clock.exact.has(task.id)) return [];
    const source = clock.waited.get(task.id), why = source ? `waits for ${told(source)} on worker ${source.worker}` : "waits";
    return [element("div", { class: "wait", title: why, style: `left: ${at(from)}; width: ${at(to - from)}` })];
  });
}

function ghost(problem, task, row, clock, at) { // where a refused task would stand
  const stream = ({ op }) => problem.rules.ops[op].stream;
  const before = row.filter((each) => ["", stream(task)].includes(stream(each)));
  const from = Math.max(0, ...before.map(({ id }) => clock.end.get(id)));
  const style = `left: ${at(from)}; width: ${at(Math.max(0.5, problem.slots(task)))}`;
  return element("div", { class: `refused ${kind(problem, task)}`, style }, title(task));
}

function kept(problem, row, worker) {
  const cap = problem.level.caps?.[worker], flying = inFlight(row, problem.rules.ops).at(-1) ?? 0;
  if (cap === undefined || cap === null) return element("small", {}, ` in flight ${flying}`);
  const full = flying >= cap;
  return element("small", { class: full ? "full" : "" }, ` in flight ${flying} of ${cap}${full ? ", full" : ""}`);
}

function tray(problem, tasks, marks, act) {
  return element("div", { class: "tray" }, ...tasks.map((task) => pressed(text(problem, task), () => act.place(task), {
    class: `choice ${task.op}${marks.tasks?.includes(task) ? " fault" : ""}`, "data-task": cell(task), "data-worker": task.worker,
    "aria-label": `place ${told(task)} on worker ${task.worker}${task.version ? `, weight version ${task.version}` : ""}`,
  })));
}
