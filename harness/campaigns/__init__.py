"""Runs of many schedules: hunts, the main job, history, soak, replays; their cases and records."""
