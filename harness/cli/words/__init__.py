"""The words of a command line: how they are read, and what each may be."""
