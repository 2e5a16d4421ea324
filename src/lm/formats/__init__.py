"""Other programs' files: .npy, dump-*.pkl, Hugging Face."""
