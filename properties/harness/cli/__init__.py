"""Tests of the command line, and of pytest as a command."""
