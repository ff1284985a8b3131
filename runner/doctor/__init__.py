"""What `runner doctor` looks at and what `--repair` mends."""
