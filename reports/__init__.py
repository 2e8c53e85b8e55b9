"""Makes HTML pages, summaries and other files from records."""
