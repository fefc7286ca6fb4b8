// What a timeline is painted with: a canvas's context, or one that writes SVG.

const FONT = "Arial, Helvetica, Liberation Sans, sans-serif";
const TILE_PX = 6; // from a stroke of a hatching to the next
const SLOPES = { "/": [1], "\\": [-1], x: [1, -1] };

class SvgPen { // those of the context's methods that painting uses
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], definitions: [], open: [[]], path: [] });
    Object.assign(this, { fillStyle: "black", strokeStyle: "black", lineWidth: 1, globalAlpha: 1, font: `12px ${FONT}` });
    Object.assign(this, { textAlign: "left", textBaseline: "alphabetic", dash: [] });
    this.ruler = document.createElement("canvas").getContext("2d");
  }

  put(name, attributes, text = "") {
    if (this.globalAlpha < 1) attributes.opacity = this.globalAlpha;
    const told = Object.entries(attributes).map(([key, value]) => ` ${key}="${escaped(rounded(value))}"`).join("");
    this.parts.push(`<${name}${told}>${escaped(text)}</${name}>`);
  }

  define(inner) { // what is drawn by name; the same one once
    let number = this.definitions.indexOf(inner);
    if (number < 0) number = this.definitions.push(inner) - 1;
    return `url(#d${number})`;
  }

  fillRect(x, y, width, height) { this.put("rect", { x, y, width, height, fill: this.fillStyle }); }

  strokeRect(x, y, width, height) {
    this.put("rect", { x, y, width, height, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  fillText(text, x, y) {
    const [, weight, size] = this.font.match(/(bold )?([\d.]+)px/);
    this.put("text", {
      x, y, fill: this.fillStyle, "font-size": size, ...(weight ? { "font-weight": "bold" } : {}),
      "text-anchor": { left: "start", center: "middle", right: "end" }[this.textAlign],
      "dominant-baseline": { middle: "central", top: "hanging", bottom: "auto" }[this.textBaseline] ?? "auto",
    }, text);
  }

  measureText(text) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  beginPath() { this.path = []; }
  moveTo(x, y) { this.path.push(`M${rounded(x)} ${rounded(y)}`); }
  lineTo(x, y) { this.path.push(`L${rounded(x)} ${rounded(y)}`); }
  rect(x, y, width, height) { this.path.push(`M${rounded(x)} ${rounded(y)}h${rounded(width)}v${rounded(height)}h${rounded(-width)}z`); }
  setLineDash(dash) { this.dash = dash; }

  stroke() {
    const dashed = this.dash.length ? { "stroke-dasharray": this.dash.join(" ") } : {};
    this.put("path", { d: this.path.join(""), fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, ...dashed });
  }

  group(attributes) {
    this.parts.push(`<g ${attributes}>`);
    this.open.at(-1).push("</g>");
  }

  save() { this.open.push([]); }
  restore() { this.parts.push(...this.open.pop()); }
  clip() { this.group(`clip-path="${this.define(`<clipPath id="ID"><path d="${this.path.join("")}"/></clipPath>`)}"`); }
  translate(x, y) { this.group(`transform="translate(${x} ${y})"`); }

  hatch(style, boxes) {
    const strokes = (SLOPES[style.pattern] ?? []).map((slope) => (slope > 0 ? `M0 ${TILE_PX}L${TILE_PX} 0` : `M0 0L${TILE_PX} ${TILE_PX}`));
    if (!strokes.length) return;
    this.fillStyle = this.define(
      `<pattern id="ID" width="${TILE_PX}" height="${TILE_PX}" patternUnits="userSpaceOnUse">`
      + `<path d="${strokes.join("")}" stroke="${style.edge}" stroke-opacity="0.5"/></pattern>`,
    );
    for (const each of boxes) this.fillRect(...each);
  }

  toString() {
    const named = this.definitions.map((inner, number) => inner.replace("ID", `d${number}`)).join("");
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" `
      + `viewBox="0 0 ${this.width} ${this.height}" font-family="${FONT}"><defs>${named}</defs>`
      + `${this.parts.join("\n")}${this.open.flat().join("")}</svg>\n`;
  }
}

const rounded = (value) => (typeof value === "number" ? `${Math.round(value * 100) / 100}` : value);
const escaped = (text) => `${text}`.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");

const tiles = new Map(); // of hatchings, which are as large as the screen's pixels

function hatch(pen, style, boxes) { // the strokes that tell the ops apart in greyscale
  const slopes = SLOPES[style.pattern] ?? [];
  if (!slopes.length || !boxes.length) return;
  if (pen.hatch) return pen.hatch(style, boxes);
  const ratio = window.devicePixelRatio, name = `${style.pattern}${style.edge}${ratio}`;
  if (!tiles.has(name)) {
    const tile = document.createElement("canvas");
    [tile.width, tile.height] = [TILE_PX * ratio, TILE_PX * ratio];
    const own = tile.getContext("2d");
    own.scale(ratio, ratio);
    own.strokeStyle = style.edge;
    own.globalAlpha = 0.5;
    for (const slope of slopes) {
      for (const shift of [-TILE_PX, 0, TILE_PX]) { // what a stroke's corners lack is its neighbours'
        own.moveTo(shift - 1, slope > 0 ? TILE_PX + 1 : -1);
        own.lineTo(shift + TILE_PX + 1, slope > 0 ? -1 : TILE_PX + 1);
      }
    }
    own.stroke();
    tiles.set(name, tile);
  }
  const pattern = pen.createPattern(tiles.get(name), "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  pen.fillStyle = pattern;
  for (const each of boxes) pen.fillRect(...each);
}

const tidied = (number) => `${Number(number.toPrecision(5))}`;

function tidy(least) { // the next of 1, 2, 5, 10, ...
  const decade = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((part) => part * decade).find((step) => step >= least * 0.999);
}
