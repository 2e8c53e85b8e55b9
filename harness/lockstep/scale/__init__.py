"""Trials of larger shapes: sizes of pools, memory that they need, comparison without copies."""
