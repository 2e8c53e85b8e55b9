"""What tests of the subjects and of the reference share: engines, sides, one row per runner."""
