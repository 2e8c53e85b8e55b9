"""Trials of other sizes than tiny: how large pools are, what they need, and how they compare."""
