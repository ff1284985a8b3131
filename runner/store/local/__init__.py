"""Stores on this machine: blobs in a folder, and the conversion of folders that earlier versions left."""
