"""The review: one run record becomes one HTML page."""
