"""Two records side by side: what became of each finding from the earlier run to the later."""
