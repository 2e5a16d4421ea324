"""The library: computations on text, tokens, models and scores. It knows no stage and no path."""
