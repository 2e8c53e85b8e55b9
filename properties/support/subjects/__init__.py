"""What tests of the subjects and of the reference share: engines, worlds, one row per runner."""
