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
    await Plotly.react(box, data, { width, ...layout }, { displaylogo: false });
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
