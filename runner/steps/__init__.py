"""The steps that every call takes, whichever executor runs its tool; `call.py` has their order."""
