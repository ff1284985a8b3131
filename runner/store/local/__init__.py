"""A store in a folder: bytes, journals beside them, and an index."""
