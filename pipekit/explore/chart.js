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
  let dark;

  async function draw() {
    dark = document.body.dataset.jpThemeLight;
    const began = performance.now();
    const text = getComputedStyle(document.body).getPropertyValue("--jp-ui-font-color1").trim();
    const figure = model.get("figure");
    if (!figure) return;
    const { data, layout } = JSON.parse(figure.replaceAll(model.get("grey"), text || model.get("grey")));
    await Plotly.react(box, data, layout, { displaylogo: false, responsive: true });
    performance.measure("pipekit chart", { start: began, end: performance.now() });
    box.dataset.painted = Number(box.dataset.painted ?? 0) + 1;
  }

  const themed = new MutationObserver(() => {
    if (dark !== document.body.dataset.jpThemeLight) draw();
  });
  themed.observe(document.body, { attributes: true });
  model.on("change:figure", draw);
  await draw();
  return () => {
    themed.disconnect();
    model.off("change:figure", draw);
    Plotly.purge(box);
  };
}

export default { render };
