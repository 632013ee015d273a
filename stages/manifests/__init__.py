"""What is shipped and what it is worth: the manifest, made, withdrawn, verified."""
