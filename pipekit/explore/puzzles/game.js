// The game: levels, moves, and the page's words on them.

import { drawn } from "./board.js";
import { fewestSlots, puzzleOf } from "./bound.js";
import { makespan, timed } from "./clock.js";
import { diagnosis } from "./diagnosis.js";
import { element, pressed } from "./elements.js";
import { hint, next } from "./hints.js";
import { versions } from "./kept.js";
import { choices, refusal } from "./moves.js";
import { recognised } from "./recognise.js";
import { costed, playground } from "./sandbox.js";
import { keepSolved, linked, placed, solved, visited } from "./store.js";
import { pictured, told } from "./tables.js";

export class Game {
  constructor(data, page) {
    // One element says all, so that screen readers hear its changes.
    Object.assign(this, { data, page, said: element("p", { role: "status" }) });
    this.places = [...data.levels, { name: "Diagnose a trace", isTrace: true }, { name: "Sandbox", isSandbox: true }];
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("hashchange", () => this.visit());
    if (!this.visit()) this.open(0);
  }

  visit() { // where the URL points, if that is a board, and another one than is shown
    const at = location.hash === this.link ? null : visited(this.places.length);
    if (at) this.open(at.number, at.rows, at.board);
    return at;
  }

  open(number, texts = [], board = 0) {
    Object.assign(this, { number, problem: null });
    const place = this.places[number];
    if (place.isTrace) return this.show(diagnosis(this.data.trace, () => this.solve(0)));
    return this.begin(place.isSandbox ? costed(this.data.sandbox[board] ?? this.data.sandbox[0], this.data.rules) : place, texts);
  }

  begin(level, texts = []) {
    Object.assign(this, { problem: puzzleOf(level, this.data.rules), past: [], worker: 0 });
    this.become(placed(this.problem, texts));
    if (this.clock.circle) {
      this.become(this.problem.best.map(() => []));
      this.says = "The order of this link could never end, so that the board is empty.";
    }
    this.draw();
  }

  get isComplete() { return this.rows.flat().length === this.problem.tasks.size; }

  // Moves.

  place(task) {
    this.worker = task.worker;
    const why = refusal(this.problem, this.rows, task);
    if (why) {
      [this.marks, this.says] = [{ refused: task, tasks: why.tasks }, why.says];
      return this.draw();
    }
    const before = this.least();
    this.set(this.rows.map((row, worker) => (worker === task.worker ? [...row, task] : row)));
    const lost = this.least() - before;
    if (lost > 0) this.says = this.price(task, lost);
    return this.draw();
  }

  price(task, lost) { // of a move that is allowed
    const source = this.clock.waited.get(task.id), row = this.rows[task.worker], free = row.length > 1 ? this.clock.end.get(row.at(-2).id) : 0;
    const idle = this.clock.start.get(task.id) - free;
    const why = idle > 0 && source && source.worker !== task.worker
      ? ` Worker ${task.worker} idles ${count(idle)} before it, for ${told(source)} on worker ${source.worker}.`
      : " Something more urgent has to wait for it.";
    return `This costs ${count(lost)}: from here no order takes fewer than ${this.least()}.${why}`;
  }

  least() { return fewestSlots(this.problem, this.rows, this.clock); }

  take(worker, place) { // a task, and all behind it in its row
    this.worker = worker;
    this.set(this.rows.map((row, each) => (each === worker ? row.slice(0, place) : row)));
    this.draw();
  }

  set(rows) {
    this.past.push(this.rows);
    this.become(rows);
  }

  become(rows) { Object.assign(this, { rows, clock: timed(this.problem, rows), marks: {}, says: "", hints: 0 }); }

  undo() {
    if (!this.past.length) return;
    this.become(this.past.pop());
    this.draw();
  }

  hint() {
    if (!next(this.problem, this.rows)) return;
    const step = Math.min(3, this.hints + 1), { says, rows } = hint(this.problem, this.rows, step);
    if (rows) this.set(rows);
    Object.assign(this, { hints: rows ? 1 : step, says, marks: {} });
    this.draw();
  }

  key(event) {
    if (!this.problem || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    const step = (way) => { this.worker = (this.worker + way + this.rows.length) % this.rows.length; this.focus(); };
    const acts = {
      ArrowDown: () => step(1), ArrowUp: () => step(-1), z: () => this.undo(), h: () => this.hint(),
      Backspace: () => this.rows[this.worker].length && this.take(this.worker, this.rows[this.worker].length - 1),
    };
    const letter = event.key.toUpperCase(), task = choices(this.problem, this.rows)[this.worker].find(({ op }) => op === letter);
    const act = acts[event.key] ?? (task && (() => this.place(task)));
    if (!act) return;
    event.preventDefault();
    act();
  }

  // The page.

  draw() {
    const began = performance.now();
    const { activeElement } = document, isPlayed = this.page.contains(activeElement), { level } = this.problem;
    const { isSandbox } = this.places[this.number];
    const actions = element("div", { class: "actions" },
      pressed("Undo", () => this.undo(), { disabled: !this.past.length, title: "key Z" }),
      pressed(`Hint${this.hints ? ` ${this.hints + 1} of 3` : ""}`, () => this.hint(), { hidden: Boolean(isSandbox), title: "key H" }),
      pressed("Clear", () => { this.set(this.problem.best.map(() => [])); this.draw(); }),
      pressed("Copy as text", (event) => this.copy(event.target)));
    const offered = choices(this.problem, this.rows);
    const parts = [
      isSandbox ? playground(this.data.sandbox, this.problem, this.rows, (chosen, rows) => this.begin(chosen, rows)) : this.task(level),
      drawn(this.problem, this.rows, this.clock, offered, this.marks, this),
      actions, this.said, this.verdict(),
    ];
    this.show(element("div", {}, ...parts));
    this.said.className = `said${this.marks.refused ? " wrong" : ""}`;
    this.said.textContent = this.says;
    if (isPlayed) this.focus(activeElement.dataset.task);
    performance.measure("pipekit puzzle", { start: began, end: performance.now() });
  }

  show(content) {
    const done = solved();
    const steps = this.places.map(({ name }, number) => element("li", {}, pressed(
      `${number + 1}`, () => this.open(number),
      { title: name, "aria-label": `${number + 1}. ${name}${name in done ? ", solved" : ""}`, "aria-current": number === this.number ? "step" : null, class: name in done ? "done" : "" },
    )));
    const heading = element("h2", {}, `${this.number + 1}. ${this.places[this.number].name}`);
    this.page.replaceChildren(element("ol", { class: "levels", "aria-label": "levels" }, ...steps), heading, content);
    const board = this.data.sandbox.findIndex(({ name }) => name === this.problem?.level.name);
    this.link = linked(this.number, this.problem ? this.rows : [], board);
    try {
      history.replaceState(null, "", this.link);
    } catch { // a notebook's frame has no address of its own
      this.link = location.hash;
    }
  }

  task(level) {
    const caps = level.caps ? ` In flight at most, worker by worker: ${level.caps.join(", ")}.` : "";
    return element("p", {}, `${level.goal}${caps} The dashed line is at ${level.slots} slots, ${level.label}.`);
  }

  verdict() {
    const { level, rules } = this.problem, placedNow = this.rows.flat().length;
    if (!this.isComplete) {
      return element("p", { class: "verdict" }, `${placedNow} of ${this.problem.tasks.size} tasks placed; at least ${this.least()} slots from here.`);
    }
    const slots = makespan(this.clock), kept = this.rows.map((row) => versions(row, rules.ops));
    const facts = `${count(slots)} (best known ${level.slots}), weight versions ${kept.join(", ")}. ${recognised(this.problem, this.rows)}`;
    const isSolved = slots <= level.slots && kept.every((each, worker) => each <= level.versions[worker]);
    if (level.goal && isSolved) this.solve(slots);
    const more = isSolved && level.goal ? [element("b", {}, "Solved. "), facts, ` ${level.teaches} (${level.source}) `, this.onward()]
      : [`Executable${slots > level.slots ? `, ${count(slots - level.slots)} above the best` : ""}. ${facts}`];
    return element("p", { class: `verdict${isSolved ? " solved" : ""}` }, ...more);
  }

  onward() { return pressed("Next level", () => this.open(this.number + 1), { class: "next" }); }

  solve(slots) { keepSolved(this.places[this.number].name, slots); }

  async copy(button) { // as pipekit.schedules.parse reads it
    const picture = this.rows.map(pictured).join("\n");
    try {
      await navigator.clipboard.writeText(picture);
      button.textContent = "Copied";
    } catch { // not every page may write there
      this.says = picture;
      this.draw();
    }
  }

  focus(task) { // the keys go on where they were
    const tray = [...this.page.querySelectorAll(`[data-worker="${this.worker}"]`)];
    const same = tray.find((each) => each.dataset.task === task) ?? tray.find((each) => each.dataset.task[0] === task?.[0]);
    (same ?? tray[0])?.focus({ preventScroll: true });
  }
}

const count = (slots) => `${slots} slot${slots === 1 ? "" : "s"}`;
