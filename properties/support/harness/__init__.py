"""What tests of the harness share: observations made by hand, planted faults, scripted playings."""
