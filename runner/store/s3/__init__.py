"""A store in a bucket."""
