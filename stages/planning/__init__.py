"""From params.yaml, which people edit, to models/<id>/, which DVC runs."""
