"""Replacements (*stand-ins*) for compiled code, missing packages and CUDA graphs in an engine.

The engine's own code is not changed. Each stand-in is reported with its reason.
"""
