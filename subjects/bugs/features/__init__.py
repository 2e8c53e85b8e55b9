"""Bugs in optional features of an engine, in its dummy rows, and in its outputs."""
