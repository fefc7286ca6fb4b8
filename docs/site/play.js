// The explorer of timelines on a page without a kernel: canvases, and a model in place of the widget's.

const SHARED = new Set(["view", "until", "colored", "critical", "transfers"]);
const form = document.getElementById("play"), told = document.getElementById("told");
const arrived = {}, here = document.currentScript.src.replace(/[^/]*$/, "");
let models = [];

globalThis.pipekitPictures = (name, pictures) => arrived[name].resolve(revived(pictures));

function picturesOf(name) { // a script a method, since pages that come from a folder may fetch nothing else
  if (!arrived[name]) {
    const waits = arrived[name] = {};
    waits.there = new Promise((resolve) => { waits.resolve = resolve; });
    document.head.append(Object.assign(document.createElement("script"), { src: `${here}${name}.js` }));
  }
  return arrived[name].there;
}

function revived(value) { // columns of bytes are written as text
  if (value === null || typeof value !== "object") return value;
  if (typeof value.bytes === "string") return Uint8Array.from(atob(value.bytes), (letter) => letter.charCodeAt(0));
  for (const key of Object.keys(value)) value[key] = revived(value[key]);
  return value;
}

class Model { // what the canvas asks of a widget's
  constructor(number) {
    this.values = { view: [], until: -1, colored: "op", critical: false, transfers: false, picture: {}, why: {} };
    Object.assign(this, { number, followers: {} });
  }

  get(name) { return this.values[name]; }

  set(name, value) {
    for (const model of SHARED.has(name) ? models : [this]) model.put(name, value);
  }

  put(name, value) {
    this.values[name] = value;
    for (const follow of this.followers[`change:${name}`] ?? []) follow();
  }

  on(event, follow) { (this.followers[event] ??= []).push(follow); }
  off() {}
  send() {}
  save_changes() {}
}

async function show() {
  const { method, beside, stages, microbatches, link } = Object.fromEntries(new FormData(form));
  const names = [...new Set([method, beside])].filter((name) => name !== "nothing");
  told.textContent = "Loading ...";
  const found = (await Promise.all(names.map(picturesOf))).map((pictures) => pictures[`${stages}/${microbatches}/${link}`]);
  const there = found.filter((each) => typeof each !== "string");
  told.textContent = found.filter((each) => typeof each === "string").join("\n");
  const span = Math.max(...there.map((each) => each.picture.end));
  while (models.length > there.length) { models.pop(); document.getElementById("shown").lastChild.remove(); }
  there.forEach((each, number) => {
    const legend = number === 0, isNew = number === models.length;
    if (isNew) models.push(new Model(number));
    const model = models[number];
    Object.assign(model.values, { view: [], until: -1, why: each.why });
    model.put("picture", { ...each.picture, span, legend });
    if (isNew) pipekitCanvas.render({ model, el: document.getElementById("shown").appendChild(document.createElement("div")) });
  });
  history.replaceState(null, "", `#${new URLSearchParams(new FormData(form))}`);
}

for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  const menu = form.elements[name];
  if ([...(menu?.options ?? [])].some((option) => option.value === value)) menu.value = value;
}
form.addEventListener("change", show);
show();
