"""Commands that few need, one folder each. They import `lm` and `tools.record`, and nothing imports them."""
