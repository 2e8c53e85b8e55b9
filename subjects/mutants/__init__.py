"""Subjects that get one static buffer wrong in one way, made from the rows of the contracts."""
