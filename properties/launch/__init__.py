"""`paritybit watch`: the command that it runs, journals, verdict, record and page."""
