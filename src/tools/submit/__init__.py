"""Send queued experiments to other machines."""
