"""Tests of the worlds, and of what their scheduler makes of speculation."""
