"""Check files against their records: `python src verify`."""
