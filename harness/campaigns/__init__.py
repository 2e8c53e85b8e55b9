"""Campaigns that play many schedules: regress, hunts, mutants and replays."""
