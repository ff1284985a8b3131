"""Where bytes live: in a folder, in a bucket, in memory; what is kept, how long, and what goes."""
