"""Schedules written by hand: text with its faults marked, and training with it."""
