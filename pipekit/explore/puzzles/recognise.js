// Which named method a board is, or how far it is from the nearest one.

import { makespan, timed } from "./clock.js";
import { parsed, title } from "./tables.js";

export function recognised(problem, rows) { // a sentence, of a complete board
  const { named } = problem.level;
  if (!named.length) return "No named method has these tasks.";
  const mine = renumbered(rows, problem.rules.ops), slots = makespan(timed(problem, rows));
  const found = named.map((method) => {
    const own = renumbered(method.rows.map(parsed), problem.rules.ops);
    return { ...method, moved: mine.flatMap((row, worker) => outOfPlace(row, own[worker])) };
  });
  const least = Math.min(...found.map(({ moved }) => moved.length));
  const nearest = found.filter(({ moved }) => moved.length === least);
  const names = listed(nearest.map(({ name }) => name));
  if (!least) return `You built ${names}.${nearest.length > 1 ? " On these batches they are one order." : ""}`;
  const [{ moved, rows: theirs }] = nearest, more = slots - makespan(timed(problem, theirs.map(parsed)));
  const price = more ? `, and ${Math.abs(more)} slot${Math.abs(more) === 1 ? "" : "s"} ${more > 0 ? "longer" : "shorter"}` : ", and as fast";
  const where = moved.slice(0, 3).map((task) => `${title(task)} on worker ${task.worker}`);
  return least <= 3
    ? `This is ${nearest[0].name} with ${listed(where)} moved${price}.`
    : `Nearest is ${nearest[0].name}: ${least} tasks stand elsewhere${price}.`;
}

const listed = (names) => (names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

// Microbatches that read the same weights and have the same workers are alike: number them by the
// order in which they begin, so that another order of the same is the same method.
function renumbered(rows, ops) {
  const passes = rows.flat().filter(({ op }) => ops[op].isPass);
  if (passes.some(({ version }) => version)) return rows;
  const number = new Map();
  for (const row of rows) {
    const begun = row.filter(({ op, stage }) => ops[op].isPass && !ops[op].own.length && stage === 0).map(({ microbatch }) => microbatch);
    begun.toSorted((a, b) => a - b).forEach((smaller, place) => number.set(begun[place], smaller));
  }
  return rows.map((row) => row.map((task) => (ops[task.op].isPass ? { ...task, microbatch: number.get(task.microbatch) } : task)));
}

function outOfPlace(row, other) { // the fewest tasks to move in a row, so that it is the other one
  const same = (a, b) => a.op === b.op && a.stage === b.stage && a.microbatch === b.microbatch;
  const common = Array.from({ length: row.length + 1 }, () => new Array(other.length + 1).fill(0));
  for (let i = row.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      common[i][j] = same(row[i], other[j]) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const moved = [];
  for (let [i, j] = [0, 0]; i < row.length;) {
    if (j < other.length && same(row[i], other[j])) [i, j] = [i + 1, j + 1];
    else if (j < other.length && common[i][j + 1] > common[i + 1][j]) j++;
    else moved.push(row[i++]);
  }
  return moved;
}
