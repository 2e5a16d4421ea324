"""Little stories from a seeded grammar whose entropy is known."""
