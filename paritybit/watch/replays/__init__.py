"""Repeats replays under changed conditions, to find faults and their causes."""
