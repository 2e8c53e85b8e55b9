"""Explores every schedule of an engine's allocator and prefix cache up to a bound, without a model.

`search` walks the states, `laws` states what must hold, and a module per engine builds the
engine's own objects and calls them in the order in which its scheduler does.
"""
