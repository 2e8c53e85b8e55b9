"""A released engine on trial: its own code, driven unmodified.

Knows how to load one release into this process, what its code must find around it, and
how to hand it batches. Nothing here depends on which release it is: parts are looked up
by name, and what they do is for the harness to judge.
"""

PACKAGE, MARKER = "sglang", "srt"
"""The engine's package, and the folder in it by which it is known."""
