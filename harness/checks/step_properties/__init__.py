"""The properties of single steps, one file each."""
