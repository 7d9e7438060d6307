"""What every stage needs besides its work: its params and code, scratch folder, progress,
signals."""
