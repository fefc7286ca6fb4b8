// Answers questions about boards by the page's own modules: JSON lines in, JSON lines out.

import { createInterface } from "node:readline";

import { fewestSlots, puzzleOf } from "./bound.js";
import { makespan, timed } from "./clock.js";
import { hint, next } from "./hints.js";
import { inFlight, versions } from "./kept.js";
import { choices, refusal } from "./moves.js";
import { picture, why } from "./picture.js";
import { problemOf } from "./problem.js";
import { recognised } from "./recognise.js";
import { parsed } from "./tables.js";

const answers = {
  times({ level, rules }) {
    const problem = problemOf(level, rules), rows = problem.best, clock = timed(problem, rows);
    return {
      starts: rows.map((row) => row.map(({ id }) => clock.start.get(id))),
      ends: rows.map((row) => row.map(({ id }) => clock.end.get(id))),
      inFlight: rows.map((row) => Math.max(0, ...inFlight(row, rules.ops))),
      versions: rows.map((row) => versions(row, rules.ops)),
      bound: fewestSlots(problem, rows, clock),
    };
  },

  drawn({ level, rules }) { // the picture's columns, and its gaps
    const problem = problemOf(level, rules), clock = timed(problem, problem.best);
    const read = ({ columns }) => Object.fromEntries(Object.entries(columns).map(([name, each]) => [name, [...each]]));
    const gaps = why(problem, clock);
    return { bars: read(picture(problem, clock, "", 0)), gaps: read(gaps), shares: gaps.shares };
  },

  bound({ level, rules }) { // of an empty board
    const problem = problemOf(level, rules), rows = problem.best.map(() => []);
    return fewestSlots(problem, rows, timed(problem, rows));
  },

  goal({ level, rules }) {
    return puzzleOf(level, rules).level;
  },

  recognised({ level, rules, rows }) {
    return recognised(problemOf(level, rules), rows.map(parsed));
  },

  refusal({ level, rules, rows, worker, task }) {
    const problem = puzzleOf(level, rules), id = `${worker}|${task}`;
    return refusal(problem, rows.map((row, each) => parsed(row, each).map((one) => problem.tasks.get(one.id))), problem.tasks.get(id));
  },

  hints({ level, rules, rows }) {
    const problem = puzzleOf(level, rules), board = rows.map((row, each) => parsed(row, each).map((one) => problem.tasks.get(one.id)));
    return [1, 2, 3].map((step) => hint(problem, board, step).says);
  },

  played({ level, rules }) { // by third hints alone, from an empty board; bounds and choices on the way
    const problem = puzzleOf(level, rules);
    let rows = problem.best.map(() => []);
    const bounds = [], offered = [];
    while (next(problem, rows)) {
      const { worker, task } = next(problem, rows);
      offered.push(choices(problem, rows)[worker].includes(task) && !refusal(problem, rows, task));
      rows = hint(problem, rows, 3).rows;
      bounds.push(fewestSlots(problem, rows, timed(problem, rows)));
    }
    return { slots: makespan(timed(problem, rows)), bounds, offered: offered.every(Boolean), says: recognised(problem, rows) };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line);
  console.log(JSON.stringify(answers[question.ask](question)));
}
