"""Causes that more runs than one show: other batchings, a second playing, the dense oracle."""
