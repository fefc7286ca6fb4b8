// A number of slots that no completion of a board is shorter than; see proof.py for the argument.

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
