"""The properties of a whole schedule, a file for each."""
