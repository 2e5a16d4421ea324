"""`python src scaling`: how the loss falls with size, data and compute."""
