"""Documents: where they come from, how they are stored, which of them a slice holds."""
