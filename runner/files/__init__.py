"""My Files: what a user keeps, its sessions, its download links, what is told of changes."""
