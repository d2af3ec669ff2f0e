"""The HTML report of a sweep: one file with data, videos, style and code in it."""
