"""Causes that need several runs: other batchings, a second play, the dense oracle."""
