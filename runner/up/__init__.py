"""Systemd units and compose files with a server for each user of a users file."""
