"""Files: hashes, manifests, locks, atomic writes, and reading what others made."""
