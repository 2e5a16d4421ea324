"""Training: the step, its ranks, the checkpoints of a run. src/train.py is the loop."""
