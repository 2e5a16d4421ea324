"""Where text comes from: each module fills a folder with parquet and says what it put there."""
