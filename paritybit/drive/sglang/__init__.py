"""Serves generated requests to a whole sglang: its scheduler, with a tiny model.

As in the package above, which this one extends, an engine is started in a process of its own.
"""
