"""Readers and writers of formats: base64, MIME types, file names, JSON, images, tables, numbers."""
