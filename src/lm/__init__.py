"""The library: computations on text, tokens, models and scores. It does not know stages or paths."""
