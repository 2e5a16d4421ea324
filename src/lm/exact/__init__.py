"""Exact numerics: the same bits on every processor, for any number of threads."""
