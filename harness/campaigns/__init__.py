"""Campaigns that play many schedules: regress, hunts, history, soak, mutants and replays."""
