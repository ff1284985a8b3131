"""Storage of bytes in a folder, a bucket or memory, with retention and quotas."""
