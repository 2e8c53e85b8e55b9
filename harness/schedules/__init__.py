"""Schedules: what both runs do, as data. Generates and shrinks them."""
