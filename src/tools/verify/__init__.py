"""Is this run what it says? `python src verify`."""
