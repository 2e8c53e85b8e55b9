"""Campaigns that play many schedules: regress, hunts and replays."""
