"""Layouts of the drawings: time lines, slots, static inputs, bit patterns, detection."""
