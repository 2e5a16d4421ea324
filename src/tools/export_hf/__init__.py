"""Convert models to and from Hugging Face folders: `python src export_hf`."""
