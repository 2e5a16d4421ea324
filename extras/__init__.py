"""Commands that few need, one folder each. They import `lm` and `tools.common`, and nothing imports them."""
