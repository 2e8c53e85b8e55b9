"""Compares two records: what changed for each finding from the earlier run to the later."""
