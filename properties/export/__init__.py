"""Cases that become tests of an engine's own suite."""
