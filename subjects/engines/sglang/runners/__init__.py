"""The engine's own runners: built, captured and replayed by its code."""
