"""Serves generated requests to a whole vLLM: its engine core, with a tiny model."""
