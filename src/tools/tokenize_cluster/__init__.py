"""`python src tokenize_cluster`: tokenizing in ranks."""
