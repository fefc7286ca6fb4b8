const form = document.getElementById("filters");
const papers = [...document.querySelectorAll("section[data-paper]")];
const tables = [...document.querySelectorAll(".printed-table")];

function state() {
  const chosen = new URLSearchParams();
  if (form.paper.value) chosen.set("paper", form.paper.value);
  const boxes = [...form.status];
  if (boxes.some(box => !box.checked)) {
    chosen.set("status", boxes.filter(box => box.checked).map(box => box.value).join(","));
  }
  if (form.text.value) chosen.set("text", form.text.value);
  return chosen;
}

function restore() {
  const chosen = new URLSearchParams(location.search);
  form.paper.value = chosen.get("paper") ?? "";
  const statuses = chosen.get("status")?.split(",");
  for (const box of form.status) box.checked = statuses === undefined || statuses.includes(box.value);
  form.text.value = chosen.get("text") ?? "";
}

function hides(link) {
  return document.getElementById(link.hash.slice(1)).closest("[hidden]") !== null;
}

function filter() {
  const paper = form.paper.value, text = form.text.value.toLowerCase();
  const statuses = new Set([...form.status].filter(box => box.checked).map(box => box.value));
  let shown = 0;
  const seen = new Set();
  for (const section of papers) {
    let inPaper = 0;
    for (const group of section.querySelectorAll(".group")) {
      let inGroup = 0;
      const heading = group.querySelector("h3").textContent;
      for (const card of group.querySelectorAll(".claim")) {
        const found = `${heading} ${card.textContent}`.toLowerCase().includes(text);
        card.hidden = !found || !statuses.has(card.dataset.status);
        inGroup += !card.hidden;
      }
      group.hidden = inGroup === 0;
      inPaper += inGroup;
    }
    section.hidden = inPaper === 0 || (paper !== "" && section.dataset.paper !== paper);
    shown += section.hidden ? 0 : inPaper;
  }
  for (const table of tables) {
    for (const row of table.querySelector("tbody").rows) row.hidden = [...row.querySelectorAll("a")].every(hides);
    table.hidden = [...table.querySelector("tbody").rows].every(row => row.hidden);
  }
  for (const cause of document.querySelectorAll(".cause")) {
    const links = [...cause.querySelectorAll("a")];
    for (const link of links) link.parentElement.hidden = hides(link);
    cause.hidden = links.every(link => link.parentElement.hidden);
  }
  // These count the claims of a paper, or all: of others they say nothing.
  for (const score of document.querySelectorAll(".score[data-paper]")) {
    score.hidden = paper !== "" && score.dataset.paper !== paper;
  }
  const whole = state().size === 0;
  for (const told of document.querySelectorAll(".whole")) told.hidden = !whole;
  form.shown.value = shown;
}

// A link to a claim that the filter hides shows it: whoever follows it wants to read it.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.closest("[hidden]")) {
    form.reset();
    changed();
    target.scrollIntoView();
  }
}

function changed() {
  filter();
  const query = state().toString();
  history.replaceState(null, "", `${location.pathname}${query && "?"}${query}${location.hash}`);
}

form.addEventListener("input", changed);
form.addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", reveal);
form.hidden = false;
restore();
filter();
reveal();
