"""Serves generated requests to a whole sglang: its scheduler, with a tiny model.

The engine is started in its own process, as the package above does for every engine.
"""
