// Which tasks can come next, and why another one cannot: in a sentence, with the tasks at fault.

import { timed } from "./clock.js";
import { inFlight } from "./kept.js";
import { title, told } from "./tables.js";

export function choices(problem, rows) { // of each worker, the first task left of each op and stage
  return rows.map((row, worker) => {
    const placed = new Set(row.map(({ id }) => id)), first = new Map();
    const left = problem.best[worker].filter(({ id }) => !placed.has(id));
    for (const task of left.toSorted((a, b) => a.microbatch - b.microbatch)) {
      const kind = `${task.op}@${task.stage}`;
      if (!first.has(kind)) first.set(kind, task);
    }
    const ops = Object.keys(problem.rules.ops);
    return [...first.values()].sort((a, b) => a.stage - b.stage || ops.indexOf(a.op) - ops.indexOf(b.op));
  });
}

export function refusal(problem, rows, task) { // null, or why it cannot be its worker's next
  return lacking(problem, rows, task) ?? tooMany(problem, rows, task) ?? forEver(problem, rows, task);
}

function lacking(problem, rows, task) { // a need of its own worker would come later
  const { ops } = problem.rules, { worker } = task, here = rows[worker];
  const missing = problem.needs.get(task.id).map(([need]) => need)
    .filter((need) => need.worker === worker && !here.includes(need));
  if (!missing.length) return null;
  const [first] = missing, rule = ops[task.op];
  const names = missing.map(title).join(", ");
  const source = ops[first.op], away = source.inFlight < 0 ? "takes to the host" : "brings back";
  let why = `${title(task)} needs the tensors that ${title(first)} ${source.stream ? away : "keeps on this worker"}`;
  if (!rule.isPass) why = `an update adds up the gradients of all its microbatches, and ${names} would come too late`;
  else if (!ops[first.op].isPass) why = `${title(task)} reads weight version ${task.version}, which ${title(first)} makes`;
  else if (first.stage !== task.stage) why = `${title(task)} needs the output of stage ${first.stage} on this worker`;
  return { says: `Worker ${worker} would wait for itself: ${why}. Place ${names} first.`, tasks: missing };
}

function tooMany(problem, rows, task) {
  const { ops } = problem.rules, cap = problem.level.caps?.[task.worker], row = rows[task.worker];
  const flying = inFlight([...row, task], ops).at(-1), change = ({ op }) => ops[op].inFlight;
  if (cap === undefined || cap === null || flying <= cap) return null;
  const frees = (later, { stage, microbatch }) => change(later) < 0 && later.stage === stage && later.microbatch === microbatch;
  const leave = problem.best[task.worker].some((each) => change(each) < 0 && ops[each.op].stream);
  return {
    says: `Out of memory: with ${title(task)} worker ${task.worker} would keep ${flying} microbatches in flight, `
      + `and ${cap} fit. A gradient has to be added first${leave ? ", or activations have to leave" : ""}, to make room.`,
    tasks: row.filter((each, place) => change(each) > 0 && !row.slice(place + 1).some((later) => frees(later, each))),
  };
}

function forEver(problem, rows, task) {
  const tried = rows.map((row, worker) => (worker === task.worker ? [...row, task] : row));
  const { circle } = timed(problem, tried);
  if (!circle) return null;
  const steps = circle.map((each, n) => {
    const next = circle[(n + 1) % circle.length];
    return `${told(each)} waits for ${told(next)}${each.worker === next.worker ? ", which stands before it" : ` on worker ${next.worker}`}`;
  });
  return { says: `Nobody could ever go on: ${steps.join("; ")}.`, tasks: circle };
}
