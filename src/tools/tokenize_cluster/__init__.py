"""`python src tokenize_cluster`: tokenize a split in ranks."""
