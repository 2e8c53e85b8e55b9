"""Tests of what is on trial: graphs, static inputs, write locations, key lists and runners."""
