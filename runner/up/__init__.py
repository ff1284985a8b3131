"""Units of systemd and compose files with a server for each user of a file."""
