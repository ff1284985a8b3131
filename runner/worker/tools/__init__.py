"""Tool files of our own, loaded in zygotes like those of authors."""
