"""The properties: a file for each, and the table of which one must detect which bug."""
