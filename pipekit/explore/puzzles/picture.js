// A simulated board for the timelines' canvas: its bars, and why its workers are idle.

import { makespan } from "./clock.js";

const [LEFT_PX, PAD_PX] = [76, 16];

export function picture(problem, clock, name, span) { // as pipekit.explore.browser.picture makes it of a trace
  const rows = problem.best, events = rows.flat(), end = makespan(clock), { ops, idle, grid } = problem.rules;
  const kinds = Object.keys(ops).filter((op) => events.some((task) => task.op === op));
  const work = events.reduce((sum, task) => sum + problem.slots(task), 0), total = end * rows.length;
  return {
    title: `${name}: bubble ${percent(1 - work / total)} of ${number(end)} slots (exact)`, unit: "slots", span, end,
    lanes: rows.map((_, worker) => `worker ${worker}`), notes: [], left_px: LEFT_PX, right_px: PAD_PX, legend: true,
    styles: kinds.map((op) => ops[op].style), letters: kinds, idle, grid, transfers: null, memory: null,
    versions: events.some(({ op, version }) => ops[op].isPass && version),
    columns: {
      ...spans(events.map(({ id }) => [clock.start.get(id), clock.end.get(id)])),
      lane: Int32Array.from(events, ({ worker }) => worker), kind: Int32Array.from(events, ({ op }) => kinds.indexOf(op)),
      ...Object.fromEntries(["stage", "microbatch", "version"].map((of) => [of, Int32Array.from(events, (task) => task[of])])),
    },
  };
}

export function why(problem, clock) { // the gaps, and the event that each event waited for
  const rows = problem.best, place = new Map(rows.flat().map(({ id }, number) => [id, number]));
  const gaps = rows.flatMap((row, worker) => gapsOf(problem, clock, row, worker)), { causes } = problem.rules;
  const total = makespan(clock) * rows.length, at = (task) => (task ? place.get(task.id) : -1);
  const shares = causes.map(({ name }) => [name, gaps.filter(({ cause }) => cause === name).reduce((sum, { from, to }) => sum + to - from, 0)]);
  const told = shares.filter(([, slots]) => slots / total >= 0.0005).map(([name, slots]) => `${percent(slots / total)} ${name}`);
  return {
    shares: told.length ? `idle: ${told.join(", ")}` : "never idle", causes,
    columns: {
      ...spans(gaps.map(({ from, to }) => [from, to])),
      lane: Int32Array.from(gaps, ({ worker }) => worker),
      cause: Int32Array.from(gaps, ({ cause }) => causes.findIndex(({ name }) => name === cause)),
      waits: Int32Array.from(gaps, ({ waits }) => at(waits)), before: Int32Array.from(gaps, ({ before }) => at(before)),
    },
    waited: Int32Array.from(rows.flat(), ({ id }) => at(clock.waited.get(id))),
  };
}

function gapsOf(problem, clock, row, worker) { // until the last need is computed, and until it is there
  const { start, end } = clock, { ops } = problem.rules, gaps = [];
  let free = 0;
  row.forEach((before, place) => {
    const begin = start.get(before.id), gap = { worker, before };
    const needs = problem.needs.get(before.id).map(([need]) => need);
    const waits = needs.reduce((last, need) => (last && end.get(last.id) >= end.get(need.id) ? last : need), null);
    const computed = Math.max(free, Math.min(begin, waits ? end.get(waits.id) : free));
    const { receives, isPass } = ops[before.op], late = isPass ? "transfer" : "sum";
    if (place === 0) gaps.push({ ...gap, waits, from: free, to: begin, cause: "warm-up" });
    else {
      gaps.push({ ...gap, waits, from: free, to: computed, cause: isPass ? receives : "sum" });
      gaps.push({ ...gap, waits, from: computed, to: begin, cause: late });
    }
    free = end.get(before.id);
  });
  gaps.push({ worker, from: free, to: makespan(clock), cause: "drain", waits: null, before: null });
  return gaps.filter(({ from, to }) => to > from + 1e-9);
}

const spans = (times) => ({ start: Float32Array.from(times, ([from]) => from), end: Float32Array.from(times, ([, to]) => to) });

export const number = (value) => `${Number(value.toPrecision(4))}`;

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
