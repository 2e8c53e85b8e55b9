"""Serves generated requests to a whole transformers: its continuous batching, with a tiny model.

The engine is started in its own process, as the package above does for every engine.
"""
