"""What runs leave behind: records, checkpoints, provenance, and the tables made of them."""
