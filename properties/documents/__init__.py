"""Generates parts of the README and of `docs/`, and tests their commands, links and examples.

`python -m properties.documents` makes the blocks again.
"""
