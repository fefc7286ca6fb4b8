// Of the site's search: pages that explain come before notebooks, then functions, then files of code.

const RANKS = { source: 0, api: 1, gallery: 2 };

var Scorer = { // Sphinx's own numbers but for the first
  score: ([page, , , , score]) => score + 100 * (RANKS[page.split("/")[0]] ?? 3),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
