// A worker keeps microbatches in flight and weight versions while it runs its row.

export function inFlight(row, ops) { // after each task: microbatches whose activations it keeps
  let flying = 0;
  return row.map(({ op }) => {
    flying += ops[op].inFlight;
    return flying;
  });
}

export function versions(row, ops) { // the most at once: of each stage the newest, and older ones that are read later
  const newest = new Map(row.map(({ stage }) => [stage, 0]));
  let most = newest.size;
  row.forEach(({ op, stage, version }, place) => {
    if (!ops[op].isPass) newest.set(stage, version);
    const alive = new Set([...newest].map((each) => each.join()));
    for (const later of row.slice(place + 1)) {
      if (ops[later.op].isPass && later.version <= newest.get(later.stage)) alive.add(`${later.stage},${later.version}`);
    }
    most = Math.max(most, alive.size);
  });
  return most;
}
