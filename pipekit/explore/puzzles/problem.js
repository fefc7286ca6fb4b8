// A level's tasks, with the needs and the slots of each.

import { parsed } from "./tables.js";

export function problemOf(level, rules) {
  const best = level.rows.map(parsed), tasks = new Map(best.flat().map((task) => [task.id, task]));
  const { ops } = rules, passes = new Map();
  const place = (op, stage, microbatch) => `${op}${microbatch}@${stage}`;
  for (const task of tasks.values()) if (ops[task.op].isPass) passes.set(place(task.op, task.stage, task.microbatch), task);
  const find = (names, stage, microbatch) => names.map((op) => passes.get(place(op, stage, microbatch))).find(Boolean);
  const whose = (isSo) => Object.keys(ops).filter((op) => isSo(ops[op]));
  const adders = whose((rule) => rule.adds), lasts = lastSummed([...tasks.values()].filter(({ op }) => !ops[op].isPass));

  function needsOf(task) { // of a pass: its own pass before it, the message, and the weights
    const rule = ops[task.op], { stage, microbatch, worker } = task;
    if (!rule.isPass) return summed(task).map((need) => [need, 0]);
    const own = find(rule.own, stage, microbatch);
    const source = rule.receives && find(whose(({ sends }) => sends === rule.receives), stage - rule.step, microbatch);
    const maker = task.version && [...tasks.values()].find((each) => (
      each.worker === worker && each.stage === stage && !ops[each.op].isPass && each.version === task.version
    ));
    const late = (need) => (need.worker === worker ? 0 : level.link ?? 0);
    return [own, source, maker].filter(Boolean).map((need) => [need, late(need)]);
  }

  function summed({ stage, microbatch }) { // the passes whose gradients an update adds up, on all workers
    const before = Math.max(-1, ...lasts.get(stage).filter((last) => last < microbatch));
    const counts = Array.from({ length: microbatch - before }, (_, n) => before + 1 + n);
    return counts.map((each) => find(adders, stage, each)).filter(Boolean);
  }

  const needs = new Map([...tasks.values()].map((task) => [task.id, needsOf(task)]));
  const slots = ({ op, stage, worker }) => (
    (level.opSlots?.[op] ?? ops[op].slots) * (level.stages?.[stage] ?? 1) * (level.workers?.[worker] ?? 1)
  );
  return { level, rules, best, tasks, needs, slots };
}

function lastSummed(updates) { // of each stage, the last microbatch of each of its updates
  const lasts = new Map();
  for (const { stage, microbatch } of updates) lasts.set(stage, [...lasts.get(stage) ?? [], microbatch]);
  return lasts;
}
