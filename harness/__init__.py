"""The laboratory: schedules, lockstep execution, checks, hunting, localising, cases, records."""
