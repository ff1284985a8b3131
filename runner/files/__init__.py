"""My Files: a user's stored files, their sessions, download links and change events."""
