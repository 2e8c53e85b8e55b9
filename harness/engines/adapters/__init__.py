"""From an engine of others to engines under test: an adapter a file, and the table of them."""
