// What the theme leaves out for those who read by keys and by ear.

for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = 2;
for (const [aside, name] of [[".sidebar-drawer", "site"], [".toc-drawer", "page"]]) {
  for (const each of document.querySelectorAll(aside)) each.ariaLabel = `contents of the ${name}`;
}

function reach() { // what is wider than its box scrolls, by keys, too
  for (const box of document.querySelectorAll("article :is(pre, p:has(> img), .table-wrapper, .cell_output)")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);
