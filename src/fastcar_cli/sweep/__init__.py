"""Speed against quality over many settings: grid, cells on disk, metrics, search, tables.

`grid` says which cells there are, `worker` decodes one, `metrics` compares it with the dense video, `store` keeps it,
`runner` goes through all of them here or on a Ray cluster (`engines`), `results` and `table` sum up, `find`
searches the threshold of a target.
"""
