"""Tables of losses in, verdicts out: differences over documents and over seeds, noise and power."""
