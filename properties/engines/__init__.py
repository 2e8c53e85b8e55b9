"""Tests of released engines on trial. What needs one fetched is skipped, and says so."""
