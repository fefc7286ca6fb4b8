"""Schedules written by hand: text with its faults marked, and the puzzles."""
