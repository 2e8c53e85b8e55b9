"""Case files and run records, each with one schema."""
