"""Transport messages between roles, independent of their meaning."""
