"""Puzzles that run in the browser: levels, their proofs, and the page that plays them."""
