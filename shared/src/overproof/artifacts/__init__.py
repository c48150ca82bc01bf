"""Files that jobs make and read: stored once, named by the attempt, checked by hash."""
