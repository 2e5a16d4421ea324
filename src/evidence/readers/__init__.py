"""Files that other programs write: W&B's export of runs, states of the Trainer, samples of lm-eval."""
