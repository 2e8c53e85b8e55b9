"""Tests of how a violation is explained."""
