"""Serves generated requests to a whole sglang: its scheduler, with a tiny model."""
