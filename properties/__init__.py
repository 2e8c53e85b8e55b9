"""The verdicts: the pytest suite, and the checks that it runs."""
