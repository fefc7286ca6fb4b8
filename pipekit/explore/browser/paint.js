// A scene painted: a row a worker, a bar an event, hatched gaps, and the worker's bytes below.
//
// A scene `s` is the picture, its columns, what of it is shown (range, until) and what is marked; its
// pen is a canvas's context or an SvgPen.

const TOP_PX = 4, AXIS_PX = 40, GAP = 0.16; // the gap is a part of a row's height
const EDGED_PX = 4, HATCHED_PX = 6, FONT_PX = 12, LEAST_FONT_PX = 8; // bars narrower than this have neither edge nor hatching
const PATH = "#E69F00", WEAK = 0.3, DIM = 0.6;
const PURPOSES = { activation: "#2A7CAB", gradient: "#00704F", weights: "#D55E00", unshard: "#D55E00", reduce_grad: "#E69F00", offload: "#CC79A7", load: "#8763B8" };
const HUES = ["#56B4E9", "#E69F00", "#2FB58C", "#CC79A7", "#F0E442", "#D98A5B", "#9AA7E8", "#B8B8B8"];

const xOf = (s, time) => s.left + ((time - s.range[0]) / (s.range[1] - s.range[0])) * (s.right - s.left);
const timeAt = (s, x) => s.range[0] + ((x - s.left) / (s.right - s.left)) * (s.range[1] - s.range[0]);
const topOf = (s, lane) => TOP_PX + lane * (s.rowPx + s.memoryPx);
const rowOf = (s, lane) => topOf(s, lane) + (GAP / 2) * s.rowPx;
const barPx = (s) => s.rowPx * (1 - GAP);
const numberOf = (s, i) => { // of a microbatch, with that of its chunk if it has several
  const chunks = s.picture.chunks ?? 1, number = s.bars.microbatch[i];
  return chunks > 1 ? `${Math.floor(number / chunks)}.${number % chunks}` : `${number}`;
};
const updates = (s, i) => s.picture.styles[s.bars.kind[i]].edge_px > 1;
const isSeen = (s, from, to) => to >= s.range[0] && from <= s.range[1];

function colorOf(s, i) { // of a bar, by what the reader asked for
  if (s.colored === "version") return HUES[s.bars.version[i] % HUES.length];
  if (s.colored === "stage") return HUES[s.bars.stage[i] % HUES.length];
  return s.picture.styles[s.bars.kind[i]].color;
}

function paint(s) {
  const { pen, picture } = s;
  pen.fillStyle = picture.idle;
  const end = Math.max(s.left, Math.min(s.right, xOf(s, picture.end))); // the run's own: its peer may take longer
  picture.lanes.forEach((_, lane) => pen.fillRect(s.left, rowOf(s, lane), end - s.left, barPx(s)));
  axis(s);
  pen.save();
  pen.beginPath();
  pen.rect(s.left, 0, Math.max(0, Math.min(s.right, xOf(s, s.until)) - s.left), s.height);
  pen.clip();
  if (s.gaps) paintGaps(s);
  if (s.memory) paintMemory(s);
  let visible = 1;
  for (let i = 0; i < s.bars.start.length; i++) visible += isSeen(s, s.bars.start[i], s.bars.end[i]);
  // Where bars are only pixels wide, updates must not bury what is between them.
  const leastPx = Math.min(2, ((s.right - s.left) * picture.lanes.length) / (4 * visible));
  picture.styles.forEach((style, kind) => paintKind(s, style, kind, leastPx));
  if (s.sends) paintTransfers(s);
  if (s.hot >= 0) paintMicrobatch(s);
  for (const chain of s.chains) paintChain(s, chain);
  if (s.measured) paintMeasured(s);
  pen.restore();
  margins(s);
}

function paintGaps(s) { // why a worker is idle
  const { pen, gaps } = s, byCause = s.colored === "cause";
  s.why.causes.forEach((cause, number) => {
    const style = byCause ? cause.own : cause.style, boxes = [];
    if (!style.pattern) return;
    pen.fillStyle = style.color;
    for (let i = 0; i < gaps.start.length; i++) {
      if (gaps.cause[i] !== number || !isSeen(s, gaps.start[i], gaps.end[i])) continue;
      const x = xOf(s, gaps.start[i]), each = [x, rowOf(s, gaps.lane[i]), xOf(s, gaps.end[i]) - x, barPx(s)];
      pen.fillRect(...each);
      if (each[2] >= HATCHED_PX) boxes.push(each);
    }
    hatch(pen, style, boxes);
  });
}

const floorOf = (s, lane) => topOf(s, lane) + s.rowPx + s.memoryPx - 3;
const snap = (s, x) => Math.round(x * s.ratio) / s.ratio; // to the screen's pixels, so that nothing shines through

function paintMemory(s) { // what is held over time, part upon part: the sum of all parts is painted first
  const { pen, memory } = s, { styles, top, capacity } = s.picture.memory, parts = styles.length;
  const tall = (bytes) => (bytes / top) * (s.memoryPx - 6);
  for (let part = parts - 1; part >= 0; part--) {
    pen.fillStyle = styles[part].color;
    for (let i = 0; i < memory.time.length; i++) {
      const lane = memory.lane[i], isLast = memory.lane[i + 1] !== lane;
      const end = isLast ? s.picture.end : memory.time[i + 1];
      if (!isSeen(s, memory.time[i], end)) continue;
      const x = snap(s, xOf(s, memory.time[i])), high = tall(memory.held[i * parts + part]);
      pen.fillRect(x, floorOf(s, lane) - high, snap(s, xOf(s, end)) - x, high);
    }
  }
  pen.fillStyle = s.picture.grid;
  s.picture.lanes.forEach((_, lane) => pen.fillRect(s.left, floorOf(s, lane), s.right - s.left, 1));
  if (!capacity) return;
  pen.strokeStyle = PATH;
  pen.lineWidth = 1;
  pen.setLineDash([6, 4]);
  pen.beginPath();
  s.picture.lanes.forEach((_, lane) => {
    pen.moveTo(s.left, floorOf(s, lane) - tall(capacity));
    pen.lineTo(s.right, floorOf(s, lane) - tall(capacity));
  });
  pen.stroke();
  pen.setLineDash([]);
}

function paintKind(s, style, kind, leastPx) {
  const { pen, bars } = s, high = barPx(s), edged = [], hatched = [], labelled = [];
  const isWeak = s.colored === "cause", isPlain = isWeak || s.colored === "op";
  pen.globalAlpha = isWeak ? WEAK : 1;
  pen.fillStyle = style.color;
  for (let i = 0; i < bars.start.length; i++) {
    if (bars.kind[i] !== kind || !isSeen(s, bars.start[i], bars.end[i])) continue;
    let x = xOf(s, bars.start[i]), long = xOf(s, bars.end[i]) - x;
    const y = rowOf(s, bars.lane[i]);
    if (style.edge_px > 1) { // an update takes little time or none, and must be seen
      x -= leastPx / 2;
      long = Math.max(leastPx, long);
    } else {
      if (!isPlain) pen.fillStyle = colorOf(s, i);
      if (long >= EDGED_PX) {
        const exact = long; // bars of one length all have a number, or none has
        [x, long] = [snap(s, x), snap(s, x + long) - snap(s, x)];
        edged.push([x, y, long, high]);
        if (long >= HATCHED_PX) hatched.push([x, y, long, high]);
        if (exact >= LEAST_FONT_PX) labelled.push([i, x, y, exact]);
      }
    }
    pen.fillRect(x, y, long, high);
  }
  hatch(pen, style, hatched);
  pen.strokeStyle = style.edge;
  pen.lineWidth = 1;
  for (const [x, y, long] of edged) pen.strokeRect(x + 0.5, y + 0.5, long - 1, high - 1);
  pen.globalAlpha = 1;
  label(s, labelled, isWeak ? s.color : "black");
}

function label(s, labelled, color) { // the microbatch, and under it the version, where there is room
  const { pen, bars } = s, high = barPx(s);
  pen.font = `${FONT_PX}px ${FONT}`;
  const digitPx = pen.measureText("0").width;
  const fitting = ([i, , , long]) => (FONT_PX * long) / (digitPx * numberOf(s, i).length + 3);
  const narrowest = labelled.reduce((least, bar) => Math.min(least, fitting(bar)), FONT_PX);
  const fontPx = Math.min(Math.max(narrowest, LEAST_FONT_PX), high - 3);
  if (fontPx < LEAST_FONT_PX) return;
  pen.fillStyle = color;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.font = `${fontPx}px ${FONT}`;
  const room = (text, long) => pen.measureText(text).width <= long - 1;
  for (const [i, x, y, long] of labelled) {
    const lines = [numberOf(s, i), `v${bars.version[i]}`];
    if (!room(lines[0], long)) continue;
    if (!s.picture.versions || high < 2.4 * fontPx || !room(lines[1], long)) lines.pop();
    lines.forEach((line, number) => pen.fillText(
      line, x + long / 2, y + high / 2 + (number - (lines.length - 1) / 2) * fontPx * 1.05,
    ));
  }
}

function paintTransfers(s) { // a line from where a message is sent to where it is awaited
  const { pen, sends } = s, middle = (lane) => rowOf(s, lane) + barPx(s) / 2;
  pen.lineWidth = 1.5;
  for (const [number, purpose] of s.picture.transfers.purposes.entries()) {
    pen.strokeStyle = PURPOSES[purpose] ?? s.color;
    pen.beginPath();
    for (let i = 0; i < sends.start.length; i++) {
      if (sends.purpose[i] !== number || !isSeen(s, sends.start[i], sends.end[i])) continue;
      const below = sends.source[i] === sends.destination[i] ? barPx(s) / 2 + 1 : 0; // to the host, or from it
      pen.moveTo(xOf(s, sends.start[i]), middle(sends.source[i]) + below);
      pen.lineTo(xOf(s, sends.end[i]), middle(sends.destination[i]) + below);
    }
    pen.stroke();
  }
}

function outline(s, i, color, thick) {
  s.pen.strokeStyle = color;
  s.pen.lineWidth = thick;
  const x = xOf(s, s.bars.start[i]);
  s.pen.strokeRect(x, rowOf(s, s.bars.lane[i]), xOf(s, s.bars.end[i]) - x, barPx(s));
}

function paintMicrobatch(s) { // on all workers, the others dimmed, and how long each keeps something for it
  const spans = new Map(), own = [];
  s.pen.fillStyle = s.background;
  s.pen.globalAlpha = DIM;
  for (let i = 0; i < s.bars.start.length; i++) {
    const { start, end, lane, microbatch } = s.bars, x = xOf(s, start[i]);
    if (microbatch[i] === microbatch[s.hot] && !updates(s, i)) own.push(i);
    else if (isSeen(s, start[i], end[i])) s.pen.fillRect(x - 1, rowOf(s, lane[i]), xOf(s, end[i]) - x + 2, barPx(s));
  }
  s.pen.globalAlpha = 1;
  for (const i of own) {
    outline(s, i, s.color, 2);
    const [from, to] = spans.get(s.bars.lane[i]) ?? [Infinity, -Infinity];
    spans.set(s.bars.lane[i], [Math.min(from, s.bars.start[i]), Math.max(to, s.bars.end[i])]);
  }
  if (!s.memory) return;
  for (const [lane, [from, to]] of spans) {
    const x = xOf(s, from), y = topOf(s, lane) + s.rowPx + 1;
    s.pen.strokeRect(x, y, xOf(s, to) - x, s.memoryPx - 4);
  }
}

function paintChain(s, chain) { // events, each of which waited for the one before it, joined
  const { pen } = s, middle = (i) => rowOf(s, s.bars.lane[i]) + barPx(s) / 2;
  for (const i of chain) outline(s, i, PATH, 3);
  pen.beginPath();
  chain.slice(1).forEach((i, place) => {
    pen.moveTo(xOf(s, s.bars.end[chain[place]]), middle(chain[place]));
    pen.lineTo(xOf(s, s.bars.start[i]), middle(i));
  });
  pen.stroke();
}

const measured = (s) => (s.measured ? `${tidied(Math.abs(s.measured[1] - s.measured[0]))} ${s.picture.unit}` : "");

function paintMeasured(s) {
  const { pen } = s, [from, to] = [...s.measured].sort((a, b) => a - b), x = xOf(s, from), end = xOf(s, to);
  pen.globalAlpha = 0.15;
  pen.fillStyle = s.color;
  pen.fillRect(x, 0, end - x, s.height);
  pen.globalAlpha = 1;
  const text = measured(s), y = s.height - AXIS_PX - 4;
  pen.font = `bold ${FONT_PX + 1}px ${FONT}`;
  pen.textAlign = "center";
  pen.textBaseline = "bottom";
  const wide = pen.measureText(text).width + 8;
  const middle = Math.max(s.left + wide / 2, Math.min(s.right - wide / 2, (x + end) / 2));
  pen.fillStyle = s.background;
  pen.fillRect(middle - wide / 2, y - FONT_PX - 5, wide, FONT_PX + 8);
  pen.fillStyle = s.color;
  pen.fillText(text, middle, y);
}

function axis(s) {
  const { pen, range } = s, bottom = topOf(s, s.picture.lanes.length);
  const step = tidy((range[1] - range[0]) / Math.max(2, (s.right - s.left) / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  pen.font = `${FONT_PX}px ${FONT}`;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  for (let tick = Math.ceil(range[0] / step - 1e-9) * step; tick <= range[1] * (1 + 1e-9); tick += step) {
    const x = Math.round(xOf(s, tick)) + 0.5;
    pen.fillStyle = s.picture.grid;
    pen.fillRect(x - 0.5, TOP_PX, 1, bottom - TOP_PX);
    pen.fillStyle = s.color;
    pen.fillText(tick.toFixed(digits), x, bottom + 4);
  }
  pen.fillText(`time (${s.picture.unit})`, (s.left + s.right) / 2, bottom + 22);
}

function margins(s) { // a worker's name on the left, what it keeps on the right
  const { pen, picture } = s;
  pen.fillStyle = s.color;
  pen.font = `${Math.min(FONT_PX, s.rowPx)}px ${FONT}`;
  pen.textBaseline = "middle";
  picture.lanes.forEach((name, lane) => {
    const y = topOf(s, lane) + 0.5 * s.rowPx;
    pen.textAlign = "right";
    pen.fillText(name, s.left - 8, y);
    if (s.memory) pen.fillText(picture.memory.top_text, s.left - 8, topOf(s, lane) + s.rowPx + 8); // the scale of the bytes
    pen.textAlign = "left";
    const [first, ...rest] = (picture.notes[lane] ?? "").split("\n");
    if (s.right_px && first) [first, ...rest].forEach((line, n) => pen.fillText(line, s.right + 8, y + n * 15));
  });
}
