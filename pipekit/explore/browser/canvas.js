// A timeline's widget: what is shown of a picture, and what mouse, keys and buttons change of it.

const HINT = "Drag pans, Ctrl + wheel or + and - zoom, 0 shows all, Shift + drag measures, a click says why; space plays, comma and full stop step, c: critical path";
const SECONDS_OF_PLAY = 12, WHY_MS = 30, NARROW_PX = 560, LEAST_MEMORY_PX = 24;
const COLORED = { op: "op", version: "weight version", stage: "stage", cause: "cause of idleness" };
const MOST_NAMED = 12; // versions or stages in the legend
const COLUMNS = {
  start: Float32Array, end: Float32Array,
  lane: Int32Array, kind: Int32Array, stage: Int32Array, microbatch: Int32Array, version: Int32Array,
};
const GAP_COLUMNS = {
  start: Float32Array, end: Float32Array, lane: Int32Array, cause: Int32Array, waits: Int32Array, before: Int32Array,
};
const MEMORY_COLUMNS = { time: Float32Array, lane: Int32Array, held: Float32Array };
const SENT_COLUMNS = {
  start: Float32Array, end: Float32Array, source: Int32Array, destination: Int32Array, purpose: Int32Array,
};

function render({ model, el }) {
  const box = element(el, "div", "pipekit-timeline");
  const head = element(box, "div", "pipekit-head");
  const title = element(head, "div", "pipekit-title");
  const shares = element(box, "div", "pipekit-shares");
  const legend = element(box, "div", "pipekit-legend");
  const canvas = element(box, "canvas");
  const tools = element(box, "div", "pipekit-tools");
  const play = button(tools, "Play", () => toggle());
  button(tools, "◀", () => step(-1), "to the end of the task before");
  button(tools, "▶", () => step(1), "to the end of the next task");
  const clock = element(tools, "input");
  Object.assign(clock, { type: "range", min: 0, max: 1, step: "any", value: 1, title: "until when the run is shown" });
  clock.ariaLabel = clock.title;
  const menu = element(element(tools, "label"), "select");
  menu.before("Colour by ");
  for (const [value, text] of Object.entries(COLORED)) menu.append(new Option(text, value));
  const path = button(tools, "Critical path", () => change("critical", !model.get("critical")));
  const sending = button(tools, "Transfers", () => change("transfers", !model.get("transfers")));
  button(tools, "SVG", () => download(new Blob([exported(svgPen)], { type: "image/svg+xml" }), "timeline.svg"));
  button(tools, "PNG", () => exported(canvasPen).toBlob((blob) => download(blob, "timeline.png")));
  const hint = element(tools, "span", "pipekit-hint");
  hint.textContent = HINT;
  const tip = element(box, "div", "pipekit-tip");
  const context = canvas.getContext("2d");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  const s = { pen: context, hot: -1, measured: null, chains: [] }; // the scene
  let asked = false, playing = 0, pinned = null, dragged = null, waiting = 0;

  function load() {
    const picture = s.picture = model.get("picture");
    if (!picture.lanes) return;
    s.bars = columns(picture.columns, COLUMNS);
    s.memory = picture.memory && columns(picture.memory.columns, MEMORY_COLUMNS);
    s.sent = picture.transfers && columns(picture.transfers.columns, SENT_COLUMNS);
    Object.assign(s, { hot: -1, measured: null });
    pinned = null;
    title.textContent = picture.title;
    canvas.setAttribute("aria-label", picture.title);
    sending.hidden = !s.sent;
    hint.hidden = !picture.legend; // once is enough on a page
    tip.hidden = true;
    explain();
    fit();
  }

  function explain() {
    const why = model.get("why");
    s.why = why.causes ? why : null;
    s.gaps = s.why && columns(why.columns, GAP_COLUMNS);
    s.waited = s.why && columns(why, { waited: Int32Array }).waited;
    shares.textContent = s.why?.shares ?? "";
    clearTimeout(waiting); // the bars come first; why there are gaps takes the kernel longer
    if (!s.why) waiting = setTimeout(() => model.send("why"), WHY_MS);
    name();
    ask();
  }

  function name() { // what colours and hatchings mean
    const { picture } = s, colored = model.get("colored");
    if (!picture?.lanes) return;
    let shown = picture.styles;
    if (colored === "version" || colored === "stage") {
      const numbers = [...new Set(s.bars[colored])].sort((a, b) => a - b);
      shown = numbers.slice(0, MOST_NAMED).map((number) => ({
        name: `${COLORED[colored]} ${number}`, color: HUES[number % HUES.length], edge: "#757575", pattern: "",
      }));
      if (numbers.length > MOST_NAMED) shown.push({ name: `... to ${numbers.at(-1)}`, color: "transparent", edge: "transparent", pattern: "" });
    }
    const causes = (s.why?.causes ?? []).filter((_, number) => s.gaps.cause.includes(number));
    const gaps = causes.map((cause) => (colored === "cause" ? cause.own : cause.style)).filter((style) => style.pattern);
    const named = new Map([...shown, ...gaps, ...(picture.memory?.styles ?? [])].reverse().map((style) => [style.name, style]));
    const looks = new Map(); // what looks alike has one swatch: an update, and the weights that it makes
    for (const style of [...named.values()].reverse()) { // the first of a name
      const look = [style.color, style.edge, style.pattern].join();
      looks.set(look, looks.has(look) ? { ...style, name: `${looks.get(look).name}, ${style.name}` } : style);
    }
    s.named = [...looks.values()];
    legend.replaceChildren(...s.named.map(swatch));
    legend.hidden = !(picture.legend || colored !== "op");
  }

  function swatch(style) {
    const item = document.createElement("span");
    const sample = element(item, "canvas");
    sample.setAttribute("aria-hidden", "true"); // its name stands beside it
    const ratio = window.devicePixelRatio;
    [sample.width, sample.height] = [22 * ratio, 12 * ratio];
    const pen = sample.getContext("2d");
    pen.scale(ratio, ratio);
    paintSwatch(pen, style, 0, 0);
    item.append(style.name);
    return item;
  }

  function fit() { // the canvas to the page, and the page's pixels
    const { picture } = s;
    s.width = box.clientWidth;
    if (!picture?.lanes || !s.width) return;
    const lanes = picture.lanes.length, isNarrow = s.width < NARROW_PX;
    s.rowPx = Math.max(14, Math.min(44, 420 / lanes));
    const most = picture.memory?.most_px ?? 0;
    s.memoryPx = s.memory ? Math.max(LEAST_MEMORY_PX, Math.min(most, (6 * most) / lanes)) : 0;
    s.height = TOP_PX + (s.rowPx + s.memoryPx) * lanes + AXIS_PX;
    s.ratio = window.devicePixelRatio;
    [canvas.width, canvas.height] = [Math.round(s.width * s.ratio), Math.round(s.height * s.ratio)];
    canvas.style.height = `${s.height}px`;
    s.right_px = isNarrow ? 0 : picture.right_px;
    [s.left, s.right] = [isNarrow ? 68 : picture.left_px, s.width - (s.right_px || 12)];
    ask();
  }

  function ask() { // however much changes between two frames, paint once
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; repaint(); });
  }

  function see() { // the model's part of the scene
    const view = model.get("view"), until = model.get("until"), css = getComputedStyle(box);
    s.range = view.length ? view : [0, s.picture.span];
    s.until = until < 0 ? s.picture.span : until;
    s.colored = model.get("colored");
    s.sends = model.get("transfers") ? s.sent : null;
    s.color = css.color;
    s.background = css.getPropertyValue("--jp-layout-color0").trim() || "white";
    s.chains = [];
    if (model.get("critical") && s.waited) s.chains.push(chainTo(last()));
    if (pinned && s.waited) s.chains.push(chainTo(pinned.event));
  }

  function repaint() {
    if (!s.bars || !s.width) return;
    const began = performance.now();
    see();
    context.setTransform(s.ratio, 0, 0, s.ratio, 0, 0);
    context.clearRect(0, 0, s.width, s.height);
    paint(s);
    clock.value = s.until / s.picture.span;
    menu.value = s.colored;
    path.setAttribute("aria-pressed", model.get("critical"));
    sending.setAttribute("aria-pressed", model.get("transfers"));
    performance.measure("pipekit timeline", { start: began, end: performance.now() });
    canvas.dataset.painted = Number(canvas.dataset.painted ?? 0) + 1;
    canvas.dataset.bars = s.bars.start.length;
    canvas.dataset.explained = Boolean(s.why);
    Object.assign(canvas.dataset, { width: s.width, color: s.color, measured: measured(s) });
  }

  const last = () => s.bars.end.reduce((best, end, i) => (end > s.bars.end[best] ? i : best), 0);

  function chainTo(i) { // from the first event to this one, each waited for by the next
    const found = [];
    for (let at = i; at >= 0; at = s.waited[at]) found.push(at);
    return found.reverse();
  }

  function change(what, value) {
    model.set(what, value);
    model.save_changes();
    ask();
  }

  function lookAt(from, to) {
    const { span } = s.picture;
    const length = Math.max(span * 1e-5, Math.min(span, to - from));
    const start = Math.max(0, Math.min(span - length, from));
    change("view", length === span ? [] : [start, start + length]);
  }

  // What hovering says.

  const laneAt = (y) => Math.floor((y - TOP_PX) / (s.rowPx + s.memoryPx));
  const inMemory = (y) => y > topOf(s, laneAt(y)) + s.rowPx;
  const label = (i) => `${s.picture.letters[s.bars.kind[i]]}${numberOf(s, i)} of stage ${s.bars.stage[i]}`;
  const span = (from, to) => `${tidied(from)} to ${tidied(to)} ${s.picture.unit}`;

  function barAt(x, y) {
    const time = timeAt(s, x), lane = laneAt(y), { bars } = s;
    const near = (2 / (s.right - s.left)) * (s.range[1] - s.range[0]);
    if (x < s.left || x > s.right) return -1;
    let found = -1;
    for (let i = 0; i < bars.start.length; i++) {
      if (bars.lane[i] !== lane || time < bars.start[i] - near || time > bars.end[i] + near) continue;
      const wanted = updates(s, i); // a thin update is meant, if near
      if (wanted || (time >= bars.start[i] && time <= bars.end[i])) found = i;
      if (wanted) break;
    }
    return found;
  }

  function gapAt(x, y) {
    if (!s.gaps || x < s.left || x > s.right) return -1;
    const time = timeAt(s, x), lane = laneAt(y);
    return s.gaps.start.findIndex((start, n) => s.gaps.lane[n] === lane && start <= time && time <= s.gaps.end[n]);
  }

  function told({ offsetX: x, offsetY: y }) { // [what to say, the event that it is about, the pass to show everywhere]
    if (inMemory(y)) return [tellMemory(x, y), -1, -1];
    const i = barAt(x, y);
    if (i >= 0) return [tellBar(i), i, updates(s, i) ? -1 : i];
    const gap = gapAt(x, y);
    return gap < 0 ? [null, -1, -1] : [tellGap(gap), s.gaps.before[gap], -1];
  }

  function hover(event) {
    if (!s.bars || pinned) return;
    const [lines, , hot] = told(event), before = s.hot;
    s.hot = hot;
    if (before !== hot) ask();
    show(lines, event);
  }

  function show(lines, { offsetX: x, offsetY: y }, isPinned = false) { // below the controls, or at the mouse
    tip.hidden = !lines;
    tip.classList.toggle("pipekit-pinned", isPinned);
    tip.tabIndex = isPinned ? 0 : -1; // a long chain scrolls, by keys, too
    if (!lines) return;
    const [first, ...rest] = lines;
    tip.replaceChildren();
    element(tip, "b").textContent = first;
    for (const line of rest) element(tip, "div").textContent = line;
    const left = x + 16 + tip.offsetWidth > s.width ? x - tip.offsetWidth - 12 : x + 16;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${canvas.offsetTop + y + 14}px`;
    if (isPinned) tip.scrollIntoView({ block: "nearest" });
  }

  function pin(event) { // a click says why, all the way, until the next one
    const [lines, about] = pinned ? [null, -1] : told(event);
    pinned = lines && about >= 0 ? { event: about } : null;
    if (pinned) show([...lines, ...reasons(about)], event, true);
    else tip.hidden = true;
    ask();
  }

  function tellBar(i) {
    const { bars, picture } = s, sums = updates(s, i);
    return [
      picture.styles[bars.kind[i]].name,
      `${picture.lanes[bars.lane[i]]}, stage ${bars.stage[i]}`,
      `${sums ? "sums up to microbatch" : "microbatch"} ${numberOf(s, i)}`,
      `${sums ? "makes" : "reads"} version ${bars.version[i]}`,
      span(bars.start[i], bars.end[i]),
    ];
  }

  function tellGap(n) { // who waits for whom, and why that one is late
    const { gaps, picture } = s, cause = s.why.causes[gaps.cause[n]], waits = gaps.waits[n];
    const before = gaps.before[n] < 0 ? "" : `before ${label(gaps.before[n])}`;
    const needs = waits < 0 ? "" : `, which needs ${label(waits)} on ${picture.lanes[s.bars.lane[waits]]}`;
    return [
      `idle, ${picture.lanes[gaps.lane[n]]}`,
      `${cause.name}: ${cause.meaning}`,
      ...(before ? [before + needs] : []),
      ...(waits < 0 ? [] : [because(waits)]),
      span(gaps.start[n], gaps.end[n]),
    ];
  }

  function because(i) { // why an event did not begin sooner
    const { bars, picture } = s, source = s.waited[i];
    if (source < 0) return `${label(i)} began at ${tidied(bars.start[i])} ${picture.unit}, and waited for nothing`;
    const where = bars.lane[source] === bars.lane[i] ? "its own worker's" : `${picture.lanes[bars.lane[source]]}'s`;
    const late = bars.start[i] - bars.end[source];
    const after = late > 1e-6 * picture.span ? `${tidied(late)} ${picture.unit} after` : "at once after";
    return `${label(i)} began at ${tidied(bars.start[i])} ${picture.unit}, ${after} ${where} ${label(source)}`;
  }

  function reasons(i) { // the chain of them, the latest first
    if (!s.waited) return [];
    const chain = [];
    for (let at = i; at >= 0; at = s.waited[at]) chain.push(at);
    const first = chain.at(-1);
    const sum = `in sum: ${chain.length} passes one after another, since ${label(first)} began at ${tidied(s.bars.start[first])} ${s.picture.unit}`;
    return [sum, ...chain.map(because)];
  }

  function tellMemory(x, y) {
    const { memory, picture } = s, time = timeAt(s, x), lane = laneAt(y);
    if (!memory || x < s.left || x > s.right || lane >= picture.lanes.length) return null;
    const { styles, unit } = picture.memory;
    const i = memory.time.findLastIndex((at, n) => memory.lane[n] === lane && at <= time);
    if (i < 0) return null;
    const held = styles.map((_, part) => memory.held[i * styles.length + part]); // each with all below it
    const lines = styles.map((style, part) => [style.name, held[part] - (held[part - 1] ?? 0)]);
    return [
      `${picture.lanes[lane]}: ${tidied(held.at(-1))} ${unit} at ${tidied(time)} ${picture.unit}`,
      ...lines.reverse().map(([part, bytes]) => `${part} ${tidied(bytes)} ${unit}`),
    ];
  }

  // What mouse and keys do.

  canvas.addEventListener("pointerdown", (event) => {
    if (!s.bars) return;
    canvas.setPointerCapture(event.pointerId);
    dragged = { x: event.offsetX, range: s.range, measures: event.shiftKey, moved: false };
    s.measured = null;
    ask();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged && !dragged.moved) pin(event);
    dragged = null;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!dragged) return hover(event);
    const { range, x } = dragged, moved = timeAt({ ...s, range }, x) - timeAt({ ...s, range }, event.offsetX);
    dragged.moved ||= Math.abs(event.offsetX - x) > 3;
    if (!dragged.moved) return;
    pinned = null;
    tip.hidden = true;
    if (dragged.measures) s.measured = [timeAt({ ...s, range }, x), timeAt({ ...s, range }, event.offsetX)];
    else lookAt(range[0] + moved, range[1] + moved);
    ask();
  });
  canvas.addEventListener("pointerleave", () => {
    s.hot = -1;
    tip.hidden = !pinned;
    ask();
  });
  canvas.addEventListener("dblclick", () => lookAt(0, s.picture.span));
  canvas.addEventListener("wheel", (event) => { // a plain wheel scrolls the page
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.003), timeAt(s, event.offsetX));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const [from, to] = s.range, part = (to - from) / 5, middle = (from + to) / 2;
    const keys = {
      "+": () => zoom(0.7, middle), "-": () => zoom(1 / 0.7, middle),
      "0": () => lookAt(0, s.picture.span),
      c: () => path.click(),
      " ": toggle, ",": () => step(-1), ".": () => step(1),
      Escape: () => { [pinned, s.measured, tip.hidden] = [null, null, true]; ask(); },
      ArrowLeft: () => lookAt(from - part, to - part),
      ArrowRight: () => lookAt(from + part, to + part),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });

  function zoom(factor, about) {
    const [from, to] = s.range;
    lookAt(about - (about - from) * factor, about + (to - about) * factor);
  }

  // The run as a film.

  clock.addEventListener("input", () => showUntil(Number(clock.value) * s.picture.span));
  menu.addEventListener("change", () => change("colored", menu.value));

  const showUntil = (time) => change("until", time >= s.picture.span ? -1 : Math.max(0, time));

  function step(way) { // to the next moment at which a task ends, or the one before
    const least = 1e-6 * s.picture.span, ends = s.bars.end;
    const now = s.until >= s.picture.span && way > 0 ? 0 : s.until;
    const beyond = ends.filter((end) => way * (end - now) > least);
    showUntil(beyond.length ? beyond.reduce((a, b) => (way * (a - b) < 0 ? a : b)) : way < 0 ? 0 : s.picture.span);
  }

  function toggle() { // from where the slider stands, or from the beginning
    playing = playing ? 0 : performance.now();
    play.textContent = playing ? "Pause" : "Play";
    if (!playing) return;
    const from = s.until < s.picture.span ? s.until : 0, began = playing;
    const frame = (now) => {
      if (playing !== began || !box.isConnected) return;
      const time = from + ((now - began) / 1000 / SECONDS_OF_PLAY) * s.picture.span;
      showUntil(time);
      if (time >= s.picture.span) toggle();
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  // The picture as a file: with title and legend, on the page's own background.

  function svgPen(width, height) {
    const pen = new SvgPen(width, height);
    return [pen, () => `${pen}`];
  }

  function canvasPen(width, height) {
    const paper = document.createElement("canvas"), ratio = Math.max(2, s.ratio);
    [paper.width, paper.height] = [width * ratio, height * ratio];
    const pen = paper.getContext("2d");
    pen.scale(ratio, ratio);
    return [pen, () => paper];
  }

  function exported(newPen) {
    see();
    context.font = `12px ${FONT}`;
    const places = [];
    let [x, rows] = [8, 1];
    for (const style of s.named) {
      const wide = 22 + 6 + context.measureText(style.name).width + 16;
      if (x + wide > s.width) [x, rows] = [8, rows + 1];
      places.push([style, x, 10 + 20 * rows + 4]);
      x += wide;
    }
    const top = 38 + 20 * rows, [pen, done] = newPen(s.width, s.height + top);
    pen.fillStyle = s.background;
    pen.fillRect(0, 0, s.width, s.height + top);
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.font = `15px ${FONT}`;
    pen.fillStyle = s.color;
    pen.fillText(s.picture.title, 8, 14);
    pen.font = `12px ${FONT}`;
    for (const [style, left, y] of places) {
      paintSwatch(pen, style, left, y);
      pen.fillStyle = s.color;
      pen.fillText(style.name, left + 28, y + 7);
    }
    pen.save();
    pen.translate(0, top);
    paint({ ...s, pen, hot: -1 });
    pen.restore();
    return done();
  }

  const resized = new ResizeObserver(fit);
  resized.observe(box);
  // The theme's colours have changed: pages say so at their body, but not all when it is done.
  box.addEventListener("transitionend", ask);
  const themed = new MutationObserver(ask);
  themed.observe(document.body, { attributes: true });
  const followed = {
    "change:picture": load, "change:why": explain, "change:colored": () => { name(); ask(); },
    "change:view": ask, "change:until": ask, "change:critical": ask, "change:transfers": ask,
  };
  for (const [event, act] of Object.entries(followed)) model.on(event, act);
  load();
  return () => {
    resized.disconnect();
    themed.disconnect();
    clearTimeout(waiting);
    for (const [event, act] of Object.entries(followed)) model.off(event, act);
  };
}

function paintSwatch(pen, style, x, y) {
  pen.fillStyle = style.color;
  pen.fillRect(x, y, 22, 12);
  hatch(pen, style, [[x, y, 22, 12]]);
  pen.strokeStyle = style.edge;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y + 0.5, 21, 11);
}

function element(parent, kind, name) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  parent.append(made);
  return made;
}

function button(parent, text, act, title = "") {
  const made = element(parent, "button");
  Object.assign(made, { textContent: text, title });
  made.addEventListener("click", act);
  return made;
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function columns(sent, kinds) { // typed arrays from the bytes that the kernel sent
  return Object.fromEntries(Object.entries(kinds).map(([name, Column]) => {
    const { buffer, byteOffset, byteLength } = sent[name];
    return [name, new Column(buffer.slice(byteOffset, byteOffset + byteLength))];
  }));
}

export default { render };
