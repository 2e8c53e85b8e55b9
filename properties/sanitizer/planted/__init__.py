"""Faults planted in copies of an engine's own code, and what `paritybit watch` says of each."""
