"""What commands show besides a result's own table: skipped lines, the line that follows training, rows of a stream."""
