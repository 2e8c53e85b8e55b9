"""Tests of the sanitizer, without an engine but a toy."""
