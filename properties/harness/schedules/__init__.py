"""Tests of schedules: as data, drawn, cut from traffic, shrunk."""
