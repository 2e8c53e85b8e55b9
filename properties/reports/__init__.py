"""The page, the comparison and the summary of a run, and the schema of its record."""
