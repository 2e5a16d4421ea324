"""`python src report`: one page about a run."""
