"""Training: the step, its ranks, the states of a run. src/train.py is the loop."""
