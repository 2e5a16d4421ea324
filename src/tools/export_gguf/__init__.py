"""Write models for llama.cpp and Ollama: `python src export_gguf`."""
