// The explorer of timelines on a page without a kernel: canvases, and a model in place of the widget's.

const form = document.getElementById("play"), told = document.getElementById("told");
const arrived = {}, here = document.currentScript.src.replace(/[^/]*$/, "");
const models = [];

globalThis.pipekitPictures = (name, pictures) => arrived[name].resolve(pipekitCanvas.revived(pictures));

function picturesOf(name) { // a script a method, since pages that come from a folder may fetch nothing else
  if (!arrived[name]) {
    const waits = arrived[name] = {};
    waits.there = new Promise((resolve) => { waits.resolve = resolve; });
    document.head.append(Object.assign(document.createElement("script"), { src: `${here}${name}.js` }));
  }
  return arrived[name].there;
}

async function show() {
  const { method, beside, stages, microbatches, link } = Object.fromEntries(new FormData(form));
  const names = [...new Set([method, beside])].filter((name) => name !== "nothing");
  told.textContent = "Loading ...";
  const found = (await Promise.all(names.map(picturesOf))).map((pictures) => pictures[`${stages}/${microbatches}/${link}`]);
  const there = found.filter((each) => typeof each !== "string");
  told.textContent = found.filter((each) => typeof each === "string").join("\n");
  pipekitCanvas.draw(there, document.getElementById("shown"), models);
  history.replaceState(null, "", `#${new URLSearchParams(new FormData(form))}`);
}

for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  const menu = form.elements[name];
  if ([...(menu?.options ?? [])].some((option) => option.value === value)) menu.value = value;
}
form.addEventListener("change", show);
show();
