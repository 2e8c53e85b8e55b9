"""Mutants: subjects with one mistake in one static buffer, derived from the contracts."""
