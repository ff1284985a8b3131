"""Bytes, names and numbers as formats have them: base64, MIME types, file names, JSON, images, tables."""
