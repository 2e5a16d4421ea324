"""Compare the bits of this machine with the committed ones: `python src prove`."""
