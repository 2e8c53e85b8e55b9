"""The trial: schedules, lockstep execution, checks, hunting, localising, cases, records."""
