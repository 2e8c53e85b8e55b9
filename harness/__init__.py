"""The trial: schedules, lockstep execution, checks, hunting, localising, cases, records."""

__version__ = "0.1.0"
