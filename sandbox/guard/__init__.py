"""The guard explains what the kernel is about to deny. It never protects: every denial holds without it."""
