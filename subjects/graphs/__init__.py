"""Graphs: the device work of a function, recorded once and replayed into the same storages.

A replay does not run Python. Addresses, host scalars and branches are fixed at capture. On CUDA a
graph is a CUDA graph. On a CPU it is a tape with the same semantics, so every property works
without a GPU.
"""
