"""Bytes that wait on disk until a bucket takes them."""
