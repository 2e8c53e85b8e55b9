"""Serves generated requests to transformers: its continuous batching, with a tiny model."""
