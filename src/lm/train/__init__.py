"""One training run: its parameters, its loop, its states, its processes."""
