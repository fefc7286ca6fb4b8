// Hints in three steps: the idea, where to look, and the move itself.

import { timed } from "./clock.js";
import { title } from "./tables.js";

export function hint(problem, rows, step) { // a sentence, and of the last step the rows that follow from it
  if (step === 1) return { says: problem.level.idea };
  const { worker, keep, task } = next(problem, rows);
  const so = rows[worker].slice(0, keep).map(title).slice(-3).join(" ");
  const where = so ? `after ${so}` : "first of all";
  const name = problem.rules.ops[task.op].style.name;
  const back = keep < rows[worker].length ? ", where you have another task" : "";
  if (step === 2) return { says: `Look at worker ${worker}: ${where} the best order known has this: ${name}${back}.` };
  const mended = rows.map((row, each) => (each === worker ? [...row.slice(0, keep), task] : row));
  return { says: `Worker ${worker}, ${where}: ${title(task)}.`, rows: mended };
}

export function next(problem, rows) { // the first task of the best order known that the board lacks
  const { start } = timed(problem, problem.best);
  const found = problem.best.flatMap((best, worker) => {
    const differs = best.findIndex((task, place) => rows[worker][place]?.id !== task.id);
    return differs < 0 ? [] : [{ worker, keep: differs, task: best[differs] }];
  });
  return found.toSorted((a, b) => start.get(a.task.id) - start.get(b.task.id))[0];
}
