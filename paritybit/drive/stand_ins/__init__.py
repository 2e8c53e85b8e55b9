"""What takes the place of compiled code, missing packages and CUDA graphs in an engine's process.

The engine's own code is not changed. Each stand-in is listed with the reason for it.
"""
