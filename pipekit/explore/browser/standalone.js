// Timelines on a page without a kernel: canvases one under another, and a model in place of the widget's.

const SHARED = new Set(["view", "until", "colored", "critical", "transfers"]);

function revived(value) { // columns of bytes are written as text
  if (value === null || typeof value !== "object") return value;
  if (typeof value.bytes === "string") return Uint8Array.from(atob(value.bytes), (letter) => letter.charCodeAt(0));
  for (const key of Object.keys(value)) value[key] = revived(value[key]);
  return value;
}

class Model { // what the canvas asks of a widget's
  constructor(number, models) {
    this.values = { view: [], until: -1, colored: "op", critical: false, transfers: false, picture: {}, why: {} };
    Object.assign(this, { number, models, followers: {} });
  }

  get(name) { return this.values[name]; }

  set(name, value) {
    for (const model of SHARED.has(name) ? this.models : [this]) model.put(name, value);
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

function draw(shown, el, models) { // pictures with their reasons, on one scale of time
  const span = Math.max(...shown.map((each) => each.picture.end));
  while (models.length > shown.length) { models.pop(); el.lastChild.remove(); }
  const named = new Set(); // by a legend above
  shown.forEach((each, number) => {
    const names = each.picture.styles.map((style) => style.name), isNew = number === models.length;
    const legend = names.some((name) => !named.has(name));
    names.forEach((name) => named.add(name));
    if (isNew) models.push(new Model(number, models));
    const model = models[number];
    Object.assign(model.values, { view: [], until: -1, why: each.why });
    model.put("picture", { ...each.picture, span, legend });
    if (isNew) render({ model, el: el.appendChild(document.createElement("div")) });
  });
}
