"""The official files of data sets: sources, folders, download, verification and file formats."""
