"""`fastcar convert`: quantizes a model into a folder of memory-mapped weights."""
