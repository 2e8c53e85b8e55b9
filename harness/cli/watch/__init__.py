"""The command `watch`: its options, the run, and what it shows."""
