"""Connectors: each reports the facts of one engine to the sanitizer, from inside its process."""
