"""Tests of schedules: as data, drawn, shrunk."""
