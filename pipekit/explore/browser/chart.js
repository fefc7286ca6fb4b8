// One of the kit's plotly figures, live.  Plotly comes from the kernel, once a page: nothing is
// requested elsewhere, and nothing of it is saved in the notebook.

function plotly(model) {
  globalThis.pipekitPlotly ??= new Promise((resolve) => {
    model.on("msg:custom", async (_, [script]) => {
      const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      await import(url);
      URL.revokeObjectURL(url);
      resolve(window.Plotly);
    });
    model.send("plotly");
  });
  return globalThis.pipekitPlotly;
}

const NARROW_PX = 600;
const [LINE_PX, GAP_PX, PANEL] = [20, 8, 0.7]; // of a line of text, of free room; a panel's share of a phone
const pen = document.createElement("canvas").getContext("2d");

// Break a text between its words where it is wider than there is room.  Plotly would cut it off.
function lines(title, room, size) {
  pen.font = `${title?.font?.size ?? size}px Open Sans, verdana, arial, sans-serif`; // plotly's own
  const found = [""];
  for (const word of (title?.text ?? "").split(/ |<br>/)) {
    const longer = `${found.at(-1)} ${word}`.trim();
    if (found.at(-1) && pen.measureText(longer).width > room) found.push(word);
    else found[found.length - 1] = longer;
  }
  return found;
}

// Return an axis whose ticks stand upright, as many as there is room for.  Plotly would turn them.
function thinned(axis, room, size) {
  if (!Array.isArray(axis.tickvals)) return { ...axis, dtick: undefined };
  pen.font = `${size}px Open Sans, verdana, arial, sans-serif`;
  const texts = axis.ticktext ?? axis.tickvals.map(String);
  const widest = Math.max(...texts.map((text) => pen.measureText(text).width));
  const every = Math.ceil((texts.length * (widest + GAP_PX)) / room);
  const kept = (_, place) => place % every === 0;
  return { ...axis, tickangle: 0, tickvals: axis.tickvals.filter(kept), ticktext: texts.filter(kept) };
}

// Return the layout for a page as narrow as a phone: the title wraps, the names of the legend stand
// one a line between it and the panel, and the axes take the room of their text.  Fingers scroll.
function narrowed(data, layout, width) {
  const size = layout.font.size;
  const title = lines(layout.title, width - GAP_PX, size);
  const names = layout.showlegend === false ? 0 : data.filter((trace) => trace.name).length;
  const below_title = names * LINE_PX + GAP_PX; // up to the panel
  const t = title.length * LINE_PX + 2 * GAP_PX + below_title;
  const height = layout.height - layout.margin.t + t;
  const axes = {};
  for (const key of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
    axes[key] = { ...(key[0] === "x" ? thinned(layout[key], PANEL * width, size) : layout[key]), automargin: true };
    if (key[0] === "x" && layout[key].title) {
      const text = lines(layout[key].title, PANEL * width, size).join("<br>");
      axes[key].title = { ...layout[key].title, text };
    }
  }
  return {
    ...layout,
    ...axes,
    width,
    height,
    margin: { l: GAP_PX, r: 2 * GAP_PX, t, b: 6 * GAP_PX },
    title: {
      ...layout.title,
      text: title.join("<br>"),
      ...{ x: 0, xref: "container" },
      pad: { b: (title.length - 1) * LINE_PX + GAP_PX + below_title }, // it is the first line that is placed
    },
    legend: {
      ...{ orientation: "h", entrywidth: width / 2 }, // upright, it would push the panel aside
      ...{ x: 0, xref: "container", xanchor: "left" },
      ...{ y: 1 - (t - below_title) / height, yref: "container", yanchor: "top" },
    },
    uniformtext: { minsize: size / 2, mode: "hide" }, // numbers in cells that are too small
    dragmode: false,
  };
}

// Return the layout for a wide page: the title, which is broken for phones, in as few lines as it needs.
function widened(layout, width) {
  const title = lines(layout.title, (layout.width ?? width) - layout.margin.l - GAP_PX, layout.font.size);
  const saved_px = LINE_PX * ((layout.title?.text ?? "").split("<br>").length - title.length);
  const { height, margin } = layout;
  return {
    ...{ width, ...layout },
    ...{ height: height - saved_px, margin: { ...margin, t: margin.t - saved_px } },
    title: { ...layout.title, text: title.join("<br>"), pad: { b: GAP_PX + LINE_PX * (title.length - 1) } },
  };
}

async function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "pipekit-chart";
  el.append(box);
  const Plotly = await plotly(model);
  let width;

  async function draw() {
    width = box.clientWidth;
    if (!width) return; // not on the page yet
    const began = performance.now();
    const figure = model.get("figure");
    if (!figure) return;
    const { data, layout } = JSON.parse(figure);
    const narrow = width < NARROW_PX;
    const fitted = narrow ? narrowed(data, layout, width) : widened(layout, width);
    await Plotly.react(box, data, fitted, { displaylogo: false, displayModeBar: narrow ? false : "hover" });
    performance.measure("pipekit chart", { start: began, end: performance.now() });
    box.dataset.width = width;
    box.dataset.painted = Number(box.dataset.painted ?? 0) + 1;
  }

  const resized = new ResizeObserver(() => {
    if (width !== box.clientWidth) draw();
  });
  resized.observe(box);
  model.on("change:figure", draw);
  return () => {
    resized.disconnect();
    model.off("change:figure", draw);
    Plotly.purge(box);
  };
}

export default { render };
