"""Graphs: a function's device work, recorded once and replayed into the same storages.

Python does not run again at a replay. Addresses and host scalars are baked in; a
branch taken at capture stays taken. On CUDA a graph is the real thing; on a CPU it is a
tape with the same semantics, so that every property works without a GPU.
"""
