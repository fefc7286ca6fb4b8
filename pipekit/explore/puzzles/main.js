// Begins the game in the page's element.

import { Game } from "./game.js";

export const begin = (data, page) => new Game(data, page);
