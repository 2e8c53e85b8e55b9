"""Tests of the runs, and of what their scheduler makes of speculation."""
