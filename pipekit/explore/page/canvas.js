// A timeline on a canvas: a row a worker, a bar an event, its bytes below; nothing is requested.

const FONT = "Arial, Helvetica, Liberation Sans, sans-serif";
const TOP_PX = 4, AXIS_PX = 40, GAP = 0.16; // the gap is a part of a row's height
const EDGED_PX = 4, HATCHED_PX = 6, FONT_PX = 12, LEAST_FONT_PX = 8; // bars narrower than this have neither edge nor hatching
const HINT = "Ctrl + wheel zooms, drag pans, Shift + drag measures, double click shows all; space plays, c: critical path";
const MEMORY_PX = [24, 48], SECONDS_OF_PLAY = 12, CRITICAL = "#E69F00";
const COLUMNS = {
  start: Float32Array, end: Float32Array,
  lane: Int32Array, kind: Int32Array, stage: Int32Array, microbatch: Int32Array, version: Int32Array,
};
const GAP_COLUMNS = { start: Float32Array, end: Float32Array, lane: Int32Array, kind: Int32Array };
const MEMORY_COLUMNS = { time: Float32Array, lane: Int32Array, held: Float32Array };

function render({ model, el }) {
  const box = element(el, "div", "pipekit-timeline");
  const head = element(box, "div", "pipekit-head");
  const title = element(head, "div", "pipekit-title");
  const legend = element(head, "div", "pipekit-legend");
  const canvas = element(box, "canvas");
  const tools = element(box, "div", "pipekit-tools");
  const play = button(tools, "Play", () => toggle());
  const clock = element(tools, "input");
  Object.assign(clock, { type: "range", min: 0, max: 1, step: "any", value: 1, title: "until when the run is shown" });
  const path = button(tools, "Critical path", () => { critical = !critical; ask(); });
  button(tools, "PNG", save);
  element(tools, "span", "pipekit-hint").textContent = HINT;
  const tip = element(box, "div", "pipekit-tip");
  const context = canvas.getContext("2d");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  let picture, bars, gaps, memory, width, height, left, right, rowPx, memoryPx;
  let asked = false, critical = false, hot = -1, measured = null, playing = 0;

  function load() {
    picture = model.get("picture");
    if (!picture.lanes) return;
    bars = columns(picture.columns, COLUMNS);
    gaps = columns(picture.gaps.columns, GAP_COLUMNS);
    memory = picture.memory && columns(picture.memory.columns, MEMORY_COLUMNS);
    [hot, measured] = [-1, null];
    title.textContent = picture.title;
    canvas.setAttribute("aria-label", picture.title);
    const shown = [...picture.styles, ...picture.gaps.styles.filter((style) => style.pattern), ...(picture.memory?.styles ?? [])];
    const named = new Map(shown.reverse().map((style) => [style.name, style])); // the first of a name
    legend.replaceChildren(...[...named.values()].reverse().map(swatch));
    legend.hidden = !picture.legend;
    tip.hidden = true;
    fit();
  }

  function swatch(style) {
    const item = document.createElement("span");
    const sample = element(item, "canvas");
    const ratio = window.devicePixelRatio;
    [sample.width, sample.height] = [22 * ratio, 12 * ratio];
    const pen = sample.getContext("2d");
    pen.scale(ratio, ratio);
    pen.fillStyle = style.color;
    pen.fillRect(0, 0, 22, 12);
    hatch(pen, style, [[0, 0, 22, 12]]);
    pen.strokeStyle = style.edge;
    pen.strokeRect(0.5, 0.5, 21, 11);
    item.append(style.name);
    return item;
  }

  function fit() { // the canvas to the page, and the page's pixels
    width = box.clientWidth;
    if (!picture?.lanes || !width) return;
    const lanes = picture.lanes.length;
    rowPx = Math.max(14, Math.min(44, 420 / lanes));
    memoryPx = memory ? Math.max(MEMORY_PX[0], Math.min(MEMORY_PX[1], 280 / lanes)) : 0;
    height = TOP_PX + (rowPx + memoryPx) * lanes + AXIS_PX;
    const ratio = window.devicePixelRatio;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    canvas.style.height = `${height}px`;
    [left, right] = [picture.left_px, width - picture.right_px];
    ask();
  }

  function ask() { // however much changes between two frames, paint once
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; paint(); });
  }

  const view = () => (model.get("view").length ? model.get("view") : [0, picture.span]);
  const xOf = (time, [from, to]) => left + ((time - from) / (to - from)) * (right - left);
  const timeAt = (x, [from, to]) => from + ((x - left) / (right - left)) * (to - from);
  const topOf = (lane) => TOP_PX + lane * (rowPx + memoryPx);
  const rowOf = (lane) => topOf(lane) + (GAP / 2) * rowPx;
  const until = () => (model.get("until") < 0 ? picture.span : model.get("until"));

  function lookAt(from, to) {
    const span = picture.span;
    const length = Math.max(span * 1e-5, Math.min(span, to - from));
    const start = Math.max(0, Math.min(span - length, from));
    model.set("view", length === span ? [] : [start, start + length]);
    model.save_changes();
    ask();
  }

  function paint() {
    if (!bars || !width) return;
    const began = performance.now();
    const ratio = window.devicePixelRatio, range = view(), barPx = rowPx * (1 - GAP);
    const css = getComputedStyle(box);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.fillStyle = picture.idle;
    const end = Math.max(left, Math.min(right, xOf(picture.end, range))); // the run's own: its peer may take longer
    picture.lanes.forEach((_, lane) => context.fillRect(left, rowOf(lane), end - left, barPx));
    axis(range, css.color);
    context.save();
    context.beginPath();
    context.rect(left, 0, Math.min(right, xOf(until(), range)) - left, height);
    context.clip();
    paintGaps(range, barPx);
    if (memory) paintMemory(range);
    let visible = 1;
    for (let i = 0; i < bars.start.length; i++) visible += bars.end[i] >= range[0] && bars.start[i] <= range[1];
    // Where bars are only pixels wide, updates must not bury what is between them.
    const leastPx = Math.min(2, ((right - left) * picture.lanes.length) / (4 * visible));
    picture.styles.forEach((style, kind) => paintKind(style, kind, range, barPx, leastPx, ratio));
    if (hot >= 0) outline(sameMicrobatch(), range, barPx, css.color, 2);
    if (critical) paintPath(range, barPx);
    if (measured) paintMeasured(range, css.color);
    context.restore();
    clock.value = until() / picture.span;
    path.setAttribute("aria-pressed", critical);
    margins(css.color);
    performance.measure("pipekit timeline", { start: began, end: performance.now() });
    canvas.dataset.painted = Number(canvas.dataset.painted ?? 0) + 1;
    canvas.dataset.bars = bars.start.length;
  }

  function paintGaps(range, barPx) { // why a worker is idle
    picture.gaps.styles.forEach((style, kind) => {
      const boxes = [];
      context.fillStyle = style.color;
      for (let i = 0; i < gaps.start.length; i++) {
        if (gaps.kind[i] !== kind || !style.pattern || gaps.end[i] < range[0] || gaps.start[i] > range[1]) continue;
        const x = xOf(gaps.start[i], range), long = xOf(gaps.end[i], range) - x;
        context.fillRect(x, rowOf(gaps.lane[i]), long, barPx);
        if (long >= HATCHED_PX) boxes.push([x, rowOf(gaps.lane[i]), long, barPx]);
      }
      hatch(context, style, boxes);
    });
  }

  function paintMemory(range) { // what is held over time, part upon part: the sum of all parts is painted first
    const { styles, top } = picture.memory, parts = styles.length;
    const floor = (lane) => topOf(lane) + rowPx + memoryPx - 3;
    const high = (i, part) => (memory.held[i * parts + part] / top) * (memoryPx - 6);
    for (let part = parts - 1; part >= 0; part--) {
      context.fillStyle = styles[part].color;
      for (let i = 0; i < memory.time.length; i++) {
        const lane = memory.lane[i], last = memory.lane[i + 1] !== lane;
        const end = last ? picture.end : memory.time[i + 1];
        if (end < range[0] || memory.time[i] > range[1]) continue;
        const x = xOf(memory.time[i], range), tall = high(i, part);
        context.fillRect(x, floor(lane) - tall, Math.max(0.5, xOf(end, range) - x), tall);
      }
    }
    context.fillStyle = picture.grid;
    picture.lanes.forEach((_, lane) => context.fillRect(left, floor(lane), right - left, 1));
    if (!picture.memory.capacity) return;
    context.strokeStyle = CRITICAL;
    context.setLineDash([6, 4]);
    context.beginPath();
    picture.lanes.forEach((_, lane) => {
      const y = floor(lane) - (picture.memory.capacity / top) * (memoryPx - 6);
      context.moveTo(left, y);
      context.lineTo(right, y);
    });
    context.stroke();
    context.setLineDash([]);
  }

  function sameMicrobatch() {
    const found = [];
    for (let i = 0; i < bars.start.length; i++) {
      const updates = picture.styles[bars.kind[i]].edge_px > 1;
      if (bars.microbatch[i] === bars.microbatch[hot] && !updates) found.push(i);
    }
    return found;
  }

  function outline(numbers, range, barPx, color, thick) {
    context.strokeStyle = color;
    context.lineWidth = thick;
    for (const i of numbers) {
      const x = xOf(bars.start[i], range), long = xOf(bars.end[i], range) - x;
      context.strokeRect(x, rowOf(bars.lane[i]), long, barPx);
    }
  }

  function paintPath(range, barPx) { // the events that the makespan hangs on, joined
    const numbers = [...picture.critical];
    outline(numbers, range, barPx, CRITICAL, 3);
    const middle = (i) => rowOf(bars.lane[i]) + barPx / 2;
    context.beginPath();
    numbers.slice(1).forEach((i, before) => {
      context.moveTo(xOf(bars.end[numbers[before]], range), middle(numbers[before]));
      context.lineTo(xOf(bars.start[i], range), middle(i));
    });
    context.stroke();
  }

  function paintMeasured(range, color) {
    const [from, to] = [...measured].sort((a, b) => a - b), x = xOf(from, range), end = xOf(to, range);
    context.globalAlpha = 0.15;
    context.fillStyle = color;
    context.fillRect(x, 0, end - x, height);
    context.globalAlpha = 1;
    context.font = `bold ${FONT_PX + 1}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(`${tidied(to - from)} ${picture.unit}`, (x + end) / 2, height - AXIS_PX);
  }

  function paintKind(style, kind, range, barPx, leastPx, ratio) {
    const edged = [], hatched = [], labelled = [];
    const snap = (x) => Math.round(x * ratio) / ratio;
    context.fillStyle = style.color;
    for (let i = 0; i < bars.start.length; i++) {
      if (bars.kind[i] !== kind || bars.end[i] < range[0] || bars.start[i] > range[1]) continue;
      let x = xOf(bars.start[i], range), long = xOf(bars.end[i], range) - x;
      const y = rowOf(bars.lane[i]);
      if (style.edge_px > 1) { // an update takes little time or none, and must be seen
        x -= leastPx / 2;
        long = Math.max(leastPx, long);
      } else if (long >= EDGED_PX) {
        [x, long] = [snap(x), snap(x + long) - snap(x)];
        edged.push([x, y, long, barPx]);
        if (long >= HATCHED_PX) hatched.push([x, y, long, barPx]);
        if (long >= LEAST_FONT_PX) labelled.push([i, x, y, long]);
      }
      context.fillRect(x, y, long, barPx);
    }
    hatch(context, style, hatched);
    context.strokeStyle = style.edge;
    context.lineWidth = 1;
    for (const [x, y, long, high] of edged) context.strokeRect(x + 0.5, y + 0.5, long - 1, high - 1);
    label(labelled, barPx);
  }

  function label(labelled, barPx) { // the microbatch, and under it the version, where there is room
    context.font = `${FONT_PX}px ${FONT}`;
    const digitPx = context.measureText("0").width;
    const fitting = ([i, , , long]) => (FONT_PX * long) / (digitPx * `${bars.microbatch[i]}`.length + 3);
    const narrowest = labelled.reduce((least, bar) => Math.min(least, fitting(bar)), FONT_PX);
    const fontPx = Math.min(Math.max(narrowest, LEAST_FONT_PX), barPx - 3);
    if (fontPx < LEAST_FONT_PX) return;
    context.fillStyle = "black";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${fontPx}px ${FONT}`;
    const room = (text, long) => context.measureText(text).width <= long - 1;
    for (const [i, x, y, long] of labelled) {
      const lines = [`${bars.microbatch[i]}`, `v${bars.version[i]}`];
      if (!room(lines[0], long)) continue;
      if (!picture.versions || barPx < 2.4 * fontPx || !room(lines[1], long)) lines.pop();
      lines.forEach((line, number) => context.fillText(
        line, x + long / 2, y + barPx / 2 + (number - (lines.length - 1) / 2) * fontPx * 1.05,
      ));
    }
  }

  function axis(range, color) {
    const bottom = topOf(picture.lanes.length);
    const step = tidy((range[1] - range[0]) / Math.max(2, (right - left) / 90));
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    context.font = `${FONT_PX}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let tick = Math.ceil(range[0] / step - 1e-9) * step; tick <= range[1] * (1 + 1e-9); tick += step) {
      const x = Math.round(xOf(tick, range)) + 0.5;
      context.fillStyle = picture.grid;
      context.fillRect(x - 0.5, TOP_PX, 1, bottom - TOP_PX);
      context.fillStyle = color;
      context.fillText(tick.toFixed(digits), x, bottom + 4);
    }
    context.fillText(`time (${picture.unit})`, (left + right) / 2, bottom + 22);
  }

  function margins(color) { // a worker's name on the left, what it keeps on the right
    context.fillStyle = color;
    context.font = `${Math.min(FONT_PX, rowPx)}px ${FONT}`;
    context.textBaseline = "middle";
    picture.lanes.forEach((name, lane) => {
      const y = topOf(lane) + 0.5 * rowPx;
      context.textAlign = "right";
      context.fillText(name, left - 8, y);
      context.textAlign = "left";
      if (picture.notes.length) context.fillText(picture.notes[lane], right + 8, y);
      if (!memory) return;
      context.textAlign = "right"; // the scale of the bytes
      context.fillText(picture.memory.top_text, left - 8, topOf(lane) + rowPx + 8);
    });
  }

  const laneAt = (y) => Math.floor((y - TOP_PX) / (rowPx + memoryPx));
  const inMemory = (y) => y > topOf(laneAt(y)) + rowPx;

  function hit(x, y) {
    const range = view(), time = timeAt(x, range), lane = laneAt(y);
    const near = (2 / (right - left)) * (range[1] - range[0]);
    if (x < left || x > right) return -1;
    let found = -1;
    for (let i = 0; i < bars.start.length; i++) {
      if (bars.lane[i] !== lane || time < bars.start[i] - near || time > bars.end[i] + near) continue;
      const wanted = picture.styles[bars.kind[i]].edge_px > 1; // a thin update is meant, if near
      if (wanted || (time >= bars.start[i] && time <= bars.end[i])) found = i;
      if (wanted) break;
    }
    return found;
  }

  function hover({ offsetX: x, offsetY: y }) {
    if (!bars) return;
    const low = inMemory(y), i = low ? -1 : hit(x, y), before = hot;
    hot = i >= 0 && picture.styles[bars.kind[i]].edge_px <= 1 ? i : -1;
    if (before !== hot) ask();
    const told = i >= 0 ? tellBar(i) : low ? tellMemory(x, y) : tellGap(x, y);
    tip.hidden = !told;
    if (!told) return;
    const [title, ...lines] = told;
    tip.replaceChildren();
    element(tip, "b").textContent = title;
    for (const line of lines) element(tip, "div").textContent = line;
    const over = x + 16 + tip.offsetWidth > width;
    tip.style.left = `${over ? x - tip.offsetWidth - 12 : x + 16}px`;
    tip.style.top = `${canvas.offsetTop + y + 14}px`;
  }

  function tellBar(i) {
    const style = picture.styles[bars.kind[i]], updates = style.edge_px > 1;
    return [
      style.name,
      `${picture.lanes[bars.lane[i]]}, stage ${bars.stage[i]}`,
      `${updates ? "sums up to microbatch" : "microbatch"} ${bars.microbatch[i]}`,
      `${updates ? "makes" : "reads"} version ${bars.version[i]}`,
      `${tidied(bars.start[i])} to ${tidied(bars.end[i])} ${picture.unit}`,
    ];
  }

  function tellGap(x, y) { // who waits for whom
    const time = timeAt(x, view()), lane = laneAt(y);
    const i = gaps.start.findIndex((start, n) => gaps.lane[n] === lane && start <= time && time <= gaps.end[n]);
    if (i < 0 || x < left || x > right) return null;
    return [
      `idle, ${picture.lanes[lane]}`, ...picture.gaps.told[i].split("\n"),
      `${tidied(gaps.start[i])} to ${tidied(gaps.end[i])} ${picture.unit}`,
    ];
  }

  function tellMemory(x, y) {
    const time = timeAt(x, view()), lane = laneAt(y), { styles, unit } = picture.memory;
    if (!memory || x < left || x > right || lane >= picture.lanes.length) return null;
    let i = memory.time.findLastIndex((at, n) => memory.lane[n] === lane && at <= time);
    if (i < 0) return null;
    const held = styles.map((_, part) => memory.held[i * styles.length + part]); // each with all below it
    const lines = styles.map((style, part) => [style.name, held[part] - (held[part - 1] ?? 0)]);
    return [
      `${tidied(held.at(-1))} ${unit} at ${tidied(time)} ${picture.unit}`,
      ...lines.reverse().map(([name, bytes]) => `${name} ${tidied(bytes)} ${unit}`),
    ];
  }

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    dragged = { x: event.offsetX, view: view(), measures: event.shiftKey };
    measured = null;
    ask();
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return hover(event);
    const [from, to] = dragged.view;
    if (dragged.measures) {
      measured = [timeAt(dragged.x, dragged.view), timeAt(event.offsetX, dragged.view)];
      return ask();
    }
    const moved = timeAt(dragged.x, dragged.view) - timeAt(event.offsetX, dragged.view);
    tip.hidden = true;
    lookAt(from + moved, to + moved);
  });
  canvas.addEventListener("pointerleave", () => { hot = -1; tip.hidden = true; ask(); });
  canvas.addEventListener("dblclick", () => lookAt(0, picture.span));
  canvas.addEventListener("wheel", (event) => { // a plain wheel scrolls the page
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), timeAt(event.offsetX, view()));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const [from, to] = view(), part = (to - from) / 5, middle = (from + to) / 2;
    const keys = {
      "+": () => zoom(0.7, middle), "-": () => zoom(1 / 0.7, middle),
      "0": () => lookAt(0, picture.span),
      c: () => path.click(),
      " ": toggle,
      ArrowLeft: () => lookAt(from - part, to - part),
      ArrowRight: () => lookAt(from + part, to + part),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });

  function zoom(factor, about) {
    const [from, to] = view();
    lookAt(about - (about - from) * factor, about + (to - about) * factor);
  }

  clock.addEventListener("input", () => showUntil(Number(clock.value) * picture.span));

  function showUntil(time) {
    model.set("until", time >= picture.span ? -1 : time);
    model.save_changes();
    ask();
  }

  function toggle() { // run the schedule as a film, from where the slider stands, or from the beginning
    playing = playing ? 0 : performance.now();
    play.textContent = playing ? "Pause" : "Play";
    if (!playing) return;
    const from = until() < picture.span ? until() : 0, began = playing;
    const step = (now) => {
      if (playing !== began || !box.isConnected) return;
      const time = from + ((now - began) / 1000 / SECONDS_OF_PLAY) * picture.span;
      showUntil(time);
      if (time >= picture.span) toggle();
      else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  function save() {
    canvas.toBlob((blob) => {
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: "timeline.png" });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  const resized = new ResizeObserver(fit);
  resized.observe(box);
  box.addEventListener("transitionend", ask); // the theme's colours have changed
  model.on("change:picture", load);
  model.on("change:view", ask);
  model.on("change:until", ask);
  load();
  return () => {
    resized.disconnect();
    model.off("change:picture", load);
    model.off("change:view", ask);
    model.off("change:until", ask);
  };
}

function element(parent, kind, name) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  parent.append(made);
  return made;
}

function button(parent, text, act) {
  const made = element(parent, "button");
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function columns(sent, kinds) { // typed arrays from the bytes that the kernel sent
  return Object.fromEntries(Object.entries(kinds).map(([name, Column]) => {
    const { buffer, byteOffset, byteLength } = sent[name];
    return [name, new Column(buffer.slice(byteOffset, byteOffset + byteLength))];
  }));
}

const tidied = (number) => `${Number(number.toPrecision(5))}`;

function hatch(pen, style, boxes) { // the strokes that tell the ops apart in greyscale
  const slopes = { "/": [1], "\\": [-1], x: [1, -1] }[style.pattern] ?? [];
  pen.strokeStyle = style.edge;
  pen.globalAlpha = 0.5;
  pen.lineWidth = 1;
  for (const [x, y, long, high] of boxes) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, long, high);
    pen.clip();
    pen.beginPath();
    for (const slope of slopes) {
      for (let at = -high; at < long; at += 6) {
        pen.moveTo(x + at, slope > 0 ? y + high : y);
        pen.lineTo(x + at + high, slope > 0 ? y : y + high);
      }
    }
    pen.stroke();
    pen.restore();
  }
  pen.globalAlpha = 1;
}

function tidy(least) { // the next of 1, 2, 5, 10, ...
  const decade = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((part) => part * decade).find((step) => step >= least * 0.999);
}

export default { render };
