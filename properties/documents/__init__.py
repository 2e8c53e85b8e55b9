"""The README and the pages of `docs/`: what in them is made by a command, and what they name.

`python -m properties.documents` makes the picture and the blocks again.
"""
