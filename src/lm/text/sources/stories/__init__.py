"""Short stories from a seeded grammar with known entropy: the grammar in code, the words in text files."""
