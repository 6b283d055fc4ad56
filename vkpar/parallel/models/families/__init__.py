"""Families of decoders: what tells each from Llama; a family that reads its own configuration is a file."""
