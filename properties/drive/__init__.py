"""What serves generated requests to whole engines."""
