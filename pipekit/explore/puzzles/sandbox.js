// The sandbox: any method's tasks, to be put in any order, with costs of one's own.

import { makespan, timed } from "./clock.js";
import { element } from "./elements.js";
import { problemOf } from "./problem.js";
import { cell, parsed } from "./tables.js";

const COSTS = { F: "forward", B: "backward", I: "backward, input", W: "backward, weights", O: "offload", L: "load" };

// A board with these costs: its goal is the best of the named methods.
export function costed(board, rules) {
  const own = problemOf(board, rules), mine = (row) => row.map(({ id }) => own.tasks.get(id));
  const slots = board.named.map((method) => makespan(timed(own, method.rows.map(parsed).map(mine))));
  return { ...board, slots: Math.min(...slots), versions: [], label: "the best of the named methods" };
}

export function playground(boards, problem, rows, begin) {
  const { level, rules } = problem, number = boards.findIndex(({ name }) => name === level.name);
  const used = new Set([...problem.tasks.values()].map(({ op }) => op));
  const costs = Object.fromEntries(Object.keys(COSTS).map((op) => [op, level.opSlots?.[op] ?? rules.ops[op].slots]));

  const change = (changed, rows) => begin(costed({ ...level, ...changed }, rules), rows);

  const board = element("select", { onchange: (event) => change({ ...boards[event.target.value], opSlots: null }, []) },
    ...boards.map(({ name }, each) => element("option", { value: each, selected: each === number }, name)));
  const start = element("select", { onchange: (event) => change({}, level.named[event.target.value]?.rows ?? []) },
    element("option", {}, "choose ..."), element("option", { value: -1 }, "nothing"),
    ...level.named.map(({ name }, each) => element("option", { value: each }, name)));
  const keep = () => rows.map((row) => row.map(cell).join(" "));
  const slider = (name, value, most, set) => element("label", {}, `${name} ${value}`, element("input", {
    type: "range", min: 0, max: most, value, onchange: (event) => change(set(Number(event.target.value)), keep()),
  }));
  const sliders = [...used].filter((op) => op in COSTS).map((op) => (
    slider(COSTS[op], costs[op], 6, (slots) => ({ opSlots: { ...costs, [op]: slots } }))));
  return element("div", { class: "sandbox" },
    element("p", {}, "Any order of any method's tasks: the page names it, and says how long it takes."),
    element("label", {}, "Tasks ", board), element("label", {}, "Begin with ", start),
    ...sliders, slider("link", level.link ?? 0, 4, (link) => ({ link })));
}
