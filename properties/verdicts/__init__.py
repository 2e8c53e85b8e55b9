"""Verdicts: what a clean build must pass, and which property sees which bug."""
