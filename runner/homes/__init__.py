"""Folders of users: made, owned, recorded, emptied."""
