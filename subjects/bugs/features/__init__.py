"""Bugs of what an engine can do beyond the basics, of its dummy rows, and of its outputs."""
