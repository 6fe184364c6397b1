"""Arrays, blocks and updates, which every other package computes with; this package knows no messages and no files."""
