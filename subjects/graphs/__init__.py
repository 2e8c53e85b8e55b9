"""Graphs: a function's device work, recorded once and replayed into the same storages."""
