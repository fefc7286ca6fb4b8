// A bar above an explorer's controls: presets, the setting to be copied, and what is waited for.

function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "pipekit-tools pipekit-setting";
  el.append(box);

  const presets = model.get("presets");
  if (presets.length) {
    const label = document.createElement("label");
    const menu = document.createElement("select");
    label.append("Begin with ", menu);
    menu.append(new Option("...", ""), ...presets.map((name) => new Option(name)));
    menu.addEventListener("change", () => {
      if (!menu.value) return;
      model.send({ preset: menu.value });
      menu.value = "";
    });
    box.append(label);
  }

  function copier(text, title, what) {
    const made = document.createElement("button");
    Object.assign(made, { textContent: text, title });
    made.addEventListener("click", async () => {
      await copy(what());
      made.textContent = "Copied";
      setTimeout(() => { made.textContent = text; }, 1500);
    });
    box.append(made);
  }
  copier("Copy as Python", "what is shown, as a call that returns it", () => model.get("code"));

  const waits = document.createElement("span");
  waits.className = "pipekit-waits";
  waits.setAttribute("role", "status");
  box.append(waits);
  const wait = () => {
    waits.textContent = model.get("busy") ? `Working: ${model.get("waits_for")} ...` : "";
  };
  wait();
  model.on("change:busy", wait);
  return () => model.off("change:busy", wait);
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // pages without TLS have no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export default { render };
