"""When each process of a run did what, on one clock."""
