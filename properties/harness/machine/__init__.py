"""Tests of what this machine has, and how work is spread over it."""
