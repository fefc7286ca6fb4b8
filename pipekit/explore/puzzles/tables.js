// Tasks as text: "F2@1:3" is F2 of stage 1 with weight version 3; see data.py, which writes them.

const CELL = /^([A-Z])(\d+)(?:@(\d+))?(?::(\d+))?$/;

export function parsed(row, worker) { // a row's tasks
  return row.split(" ").filter(Boolean).map((cell) => {
    const [, op, microbatch, stage = worker, version = 0] = cell.match(CELL);
    const task = { op, microbatch: Number(microbatch), stage: Number(stage), version: Number(version), worker };
    return { ...task, id: `${worker}|${named(task)}` };
  });
}

// The worker's own stage goes without saying.
const named = ({ op, microbatch, stage, worker }) => `${op}${microbatch}${stage === worker ? "" : `@${stage}`}`;

export const cell = (task) => task.id.split("|")[1];

export const title = (task) => (task.op === "U" ? `update ${task.version}` : `${task.op}${task.microbatch}`);

export const told = (task) => `${title(task)} of stage ${task.stage}`;

export function pictured(row, worker) { // a row as pipekit.schedules.parse reads it: updates hang on the task before them
  const own = row[0]?.stage ?? worker, at = ({ stage }) => (stage === own ? "" : `@${stage}`);
  const cells = row.map((task) => (
    task.op === "U" ? `^${task.microbatch}${at(task)}` : ` ${task.op}${task.microbatch}${at(task)}:${task.version}`));
  return `worker ${worker}${own === worker ? "" : ` stage ${own}`} |${cells.join("")}`;
}
