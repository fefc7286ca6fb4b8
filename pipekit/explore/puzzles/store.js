// Solved levels outlive a visit in the browser's own storage, and the position does in the URL.

import { cell, parsed } from "./tables.js";

const KEY = "pipekit puzzles";

export function solved() { // slots by the level's name
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch { // a browser may refuse storage to pages from a folder
    return {};
  }
}

export function keepSolved(name, slots) {
  const all = solved();
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...all, [name]: Math.min(slots, all[name] ?? Infinity) }));
  } catch { // played all the same
  }
}

export function linked(number, rows, board) { // the board is the sandbox's
  const texts = rows.map((row) => row.map(cell).join(".")).join("_");
  return `#${new URLSearchParams({ level: number + 1, ...(board >= 0 ? { board } : {}), rows: texts })}`;
}

export function visited(count) { // the level's number and its rows as text, or null if the address has none
  const query = new URLSearchParams(location.hash.slice(1)), number = Number(query.get("level")) - 1;
  if (!Number.isInteger(number) || number < 0 || number >= count) return null;
  return { number, board: Number(query.get("board")), rows: (query.get("rows") ?? "").split("_").map((row) => row.replaceAll(".", " ")) };
}

export function placed(problem, texts) { // the board of a link, as far as its tasks are the level's
  return problem.best.map((_, worker) => {
    try {
      return parsed(texts[worker] ?? "", worker).map(({ id }) => problem.tasks.get(id)).filter(Boolean);
    } catch { // a link may be cut off
      return [];
    }
  });
}
