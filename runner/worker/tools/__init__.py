"""Tool files of our own, loaded in zygotes as those of authors are."""
