"""What an engine finds around it: how it is loaded, settings, stand-ins."""
