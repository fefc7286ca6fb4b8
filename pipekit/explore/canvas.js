// A timeline on a canvas: a row a worker, a bar an event, from typed arrays; nothing is requested.

const FONT = "Arial, Helvetica, Liberation Sans, sans-serif";
const TOP_PX = 4, AXIS_PX = 40, GAP = 0.16; // the gap is a part of a row's height
const EDGED_PX = 4, HATCHED_PX = 6, FONT_PX = 12, LEAST_FONT_PX = 8; // bars narrower than this have neither edge nor hatching
const HINT = "Ctrl + wheel zooms, dragging pans, double click shows all";
const COLUMNS = {
  start: Float32Array, end: Float32Array,
  lane: Int32Array, kind: Int32Array, stage: Int32Array, microbatch: Int32Array, version: Int32Array,
};

function render({ model, el }) {
  const box = element(el, "div", "pipekit-timeline");
  const head = element(box, "div", "pipekit-head");
  const title = element(head, "div", "pipekit-title");
  const legend = element(head, "div", "pipekit-legend");
  const canvas = element(box, "canvas");
  const tip = element(box, "div", "pipekit-tip");
  const context = canvas.getContext("2d");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  let picture, bars, width, height, left, right, rowPx, asked = false, inside = false;

  function load() {
    picture = model.get("picture");
    if (!picture.lanes) return;
    bars = {};
    for (const [name, Column] of Object.entries(COLUMNS)) {
      const { buffer, byteOffset, byteLength } = picture.columns[name];
      bars[name] = new Column(buffer.slice(byteOffset, byteOffset + byteLength));
    }
    title.textContent = picture.title;
    canvas.setAttribute("aria-label", picture.title);
    const named = new Map([...picture.styles].reverse().map((style) => [style.name, style])); // the first of a name
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
    height = TOP_PX + rowPx * lanes + AXIS_PX;
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
  const rowOf = (lane) => TOP_PX + (lane + GAP / 2) * rowPx;

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
    picture.lanes.forEach((_, lane) => context.fillRect(left, rowOf(lane), right - left, barPx));
    axis(range, css.color);
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, height);
    context.clip();
    let visible = 1;
    for (let i = 0; i < bars.start.length; i++) visible += bars.end[i] >= range[0] && bars.start[i] <= range[1];
    // Where bars are only pixels wide, updates must not bury what is between them.
    const leastPx = Math.min(2, ((right - left) * picture.lanes.length) / (4 * visible));
    picture.styles.forEach((style, kind) => paintKind(style, kind, range, barPx, leastPx, ratio));
    context.restore();
    margins(css.color);
    performance.measure("pipekit timeline", { start: began, end: performance.now() });
    canvas.dataset.painted = Number(canvas.dataset.painted ?? 0) + 1;
    canvas.dataset.bars = bars.start.length;
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
    const bottom = TOP_PX + rowPx * picture.lanes.length;
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
    if (!inside) return;
    context.textAlign = "left";
    context.fillText(HINT, left, bottom + 22);
  }

  function margins(color) { // a worker's name on the left, what it keeps on the right
    context.fillStyle = color;
    context.font = `${Math.min(FONT_PX, rowPx)}px ${FONT}`;
    context.textBaseline = "middle";
    picture.lanes.forEach((name, lane) => {
      const y = TOP_PX + (lane + 0.5) * rowPx;
      context.textAlign = "right";
      context.fillText(name, left - 8, y);
      context.textAlign = "left";
      if (picture.notes.length) context.fillText(picture.notes[lane], right + 8, y);
    });
  }

  function hit(x, y) {
    const range = view(), time = timeAt(x, range), lane = Math.floor((y - TOP_PX) / rowPx);
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
    const i = bars ? hit(x, y) : -1;
    tip.hidden = i < 0;
    if (i < 0) return;
    const style = picture.styles[bars.kind[i]], updates = style.edge_px > 1;
    const number = (time) => `${Number(time.toPrecision(5))}`;
    tip.replaceChildren();
    element(tip, "b").textContent = style.name;
    element(tip, "div").textContent = `${picture.lanes[bars.lane[i]]}, stage ${bars.stage[i]}`;
    element(tip, "div").textContent =
      `${updates ? "sums up to microbatch" : "microbatch"} ${bars.microbatch[i]}`;
    element(tip, "div").textContent = `${updates ? "makes" : "reads"} version ${bars.version[i]}`;
    element(tip, "div").textContent =
      `${number(bars.start[i])} to ${number(bars.end[i])} ${picture.unit}`;
    const over = x + 16 + tip.offsetWidth > width;
    tip.style.left = `${over ? x - tip.offsetWidth - 12 : x + 16}px`;
    tip.style.top = `${canvas.offsetTop + y + 14}px`;
  }

  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    dragged = { x: event.offsetX, view: view() };
  });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return hover(event);
    const [from, to] = dragged.view;
    const moved = timeAt(dragged.x, dragged.view) - timeAt(event.offsetX, dragged.view);
    tip.hidden = true;
    lookAt(from + moved, to + moved);
  });
  canvas.addEventListener("pointerenter", () => { inside = true; ask(); });
  canvas.addEventListener("pointerleave", () => { inside = false; tip.hidden = true; ask(); });
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

  const resized = new ResizeObserver(fit);
  resized.observe(box);
  box.addEventListener("transitionend", ask); // the theme's colours have changed
  model.on("change:picture", load);
  model.on("change:view", ask);
  load();
  return () => {
    resized.disconnect();
    model.off("change:picture", load);
    model.off("change:view", ask);
  };
}

function element(parent, kind, name) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  parent.append(made);
  return made;
}

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
