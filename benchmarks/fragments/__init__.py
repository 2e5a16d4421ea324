"""What `make figures` writes into the pages, by topic."""
