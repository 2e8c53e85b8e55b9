"""Tests of the checks: that each sees its faults, and that an error is no violation."""
