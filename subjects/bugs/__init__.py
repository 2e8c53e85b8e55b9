"""The historical bugs: one file per family, their catalogue, and code to switch them on.

An entry says how a bug differs from correct code, where it was seen, and which properties must
detect it.
"""
