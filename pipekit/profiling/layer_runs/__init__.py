"""Layers run one by one: their passes, and the seconds, bytes and operations of each."""
