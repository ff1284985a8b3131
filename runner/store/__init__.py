"""My Files: what users uploaded and tools produced, kept beyond the call."""
