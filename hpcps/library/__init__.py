"""What a script or notebook calls: load, check and run experiments, read their results, train one worker."""
