"""The worker of a run without servers, and how workers average their updates among themselves."""
