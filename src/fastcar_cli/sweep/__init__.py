"""Speed against quality over many settings: grid, cells on disk, metrics, tables, report."""
