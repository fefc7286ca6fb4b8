// Makers of the page's elements.

export function element(kind, attributes = {}, ...inner) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inner);
  return made;
}

export const pressed = (text, act, attributes = {}) => element("button", { type: "button", onclick: act, ...attributes }, text);
