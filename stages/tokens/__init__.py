"""Tokenizers: bringing them in the form that a browser reads, and reading with them."""
