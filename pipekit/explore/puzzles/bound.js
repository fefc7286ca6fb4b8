// A number of slots that no completion of a board is shorter than.
//
// A task cannot begin before its head, the longest chain of tasks that it needs, nor may less than
// its tail follow it.  Of any of a worker's tasks the earliest head, all their slots, and the least
// tail follow one another (Carlier, "The one-machine sequencing problem", 1982).

import { makespan, timed } from "./clock.js";
import { inFlight, versions } from "./kept.js";
import { problemOf } from "./problem.js";

export function fewestSlots(problem, rows, clock) {
  const { slots, tasks, rules } = problem, { start, end, order, waits } = clock, tail = new Map(order.map(({ id }) => [id, 0]));
  for (const task of order.toReversed()) {
    for (const [need, delay] of waits.get(task.id)) {
      tail.set(need.id, Math.max(tail.get(need.id), tail.get(task.id) + slots(task) + delay));
    }
  }
  let least = Math.max(0, ...order.map(({ id }) => end.get(id) + tail.get(id)));
  const placed = new Set(rows.flat().map(({ id }) => id));
  rows.forEach((_, worker) => {
    const left = [...tasks.values()].filter((task) => task.worker === worker && !placed.has(task.id) && !rules.ops[task.op].stream);
    for (const head of new Set(left.map(({ id }) => start.get(id)))) {
      for (const after of new Set(left.map(({ id }) => tail.get(id)))) {
        const some = left.filter(({ id }) => start.get(id) >= head && tail.get(id) >= after);
        if (some.length) least = Math.max(least, head + some.reduce((sum, task) => sum + slots(task), 0) + after);
      }
    }
  });
  return least;
}

export function puzzleOf(level, rules) { // a level's problem, with what the best order known takes and keeps
  const problem = problemOf(level, rules), { best } = problem, empty = best.map(() => []);
  const slots = makespan(timed(problem, best)), least = fewestSlots(problem, empty, timed(problem, empty));
  const caps = level.capped ? best.map((row) => Math.max(0, ...inFlight(row, rules.ops))) : null;
  const label = least > slots - 1e-6 ? "proven optimal" : "best known";
  const own = { slots, caps, label, versions: best.map((row) => versions(row, rules.ops)) };
  return { ...problem, level: { ...own, ...level } };
}
