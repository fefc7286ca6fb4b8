// When each task of a board runs, and the soonest that each task that is not placed yet can.
//
// Workers run their rows in order, each task as soon as its needs are over; transfers run beside
// the passes, each kind in order, behind the pass that stands before them.  A task that is not
// placed comes behind its worker's row; so a circle among all of them is one that no further move
// can mend: workers would wait for one another for ever.

export function timed(problem, rows) {
  const { tasks, needs, slots, rules } = problem, before = new Map();
  const last = rows.map(() => ({})); // of each worker, the last task of each stream
  const behind = ({ op, worker }) => {
    const ends = new Set([last[worker][rules.ops[op].stream], last[worker][""]]);
    return [...ends].filter(Boolean).map((each) => [each, 0]);
  };
  for (const task of rows.flat()) {
    before.set(task.id, behind(task));
    last[task.worker][rules.ops[task.op].stream] = task;
  }
  const waits = new Map(), waiting = new Map(), readers = new Map();
  for (const task of tasks.values()) {
    waits.set(task.id, [...before.get(task.id) ?? behind(task), ...needs.get(task.id)]);
    waiting.set(task.id, waits.get(task.id).length);
    for (const [need] of waits.get(task.id)) readers.set(need.id, [...readers.get(need.id) ?? [], task]);
  }
  const start = new Map(), end = new Map(), waited = new Map(), exact = new Set(), order = [];
  const ready = [...tasks.values()].filter((task) => !waiting.get(task.id));
  while (ready.length) {
    const task = ready.pop(), known = waits.get(task.id);
    let [begin, latest] = [0, null];
    for (const [need, delay] of known) if (end.get(need.id) + delay > begin) [begin, latest] = [end.get(need.id) + delay, need];
    start.set(task.id, begin);
    end.set(task.id, begin + slots(task));
    waited.set(task.id, latest);
    if (before.has(task.id) && known.every(([need]) => exact.has(need.id))) exact.add(task.id);
    order.push(task);
    for (const reader of readers.get(task.id) ?? []) {
      waiting.set(reader.id, waiting.get(reader.id) - 1);
      if (!waiting.get(reader.id)) ready.push(reader);
    }
  }
  const circle = order.length < tasks.size ? circleOf(tasks, waits, end) : null;
  return { start, end, waited, exact, order, waits, circle };
}

function circleOf(tasks, waits, end) { // tasks each of which waits for the next, and the last for the first
  const path = [];
  let task = [...tasks.values()].find((each) => !end.has(each.id));
  while (!path.includes(task)) {
    path.push(task);
    [task] = waits.get(task.id).find(([need]) => !end.has(need.id));
  }
  return path.slice(path.indexOf(task));
}

export const makespan = (clock) => Math.max(0, ...clock.end.values());
