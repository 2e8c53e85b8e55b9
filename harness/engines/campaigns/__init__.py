"""What is done with an engine beside its trial: soaks of many steps."""
