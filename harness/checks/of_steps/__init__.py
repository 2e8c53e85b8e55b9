"""The properties of one step, a file for each."""
