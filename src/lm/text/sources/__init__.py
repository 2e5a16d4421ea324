"""Sources of text: each module fills a folder with parquet files and returns the manifest."""
