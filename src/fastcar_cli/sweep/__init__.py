"""Speed against quality over many settings: grid, cells on disk, metrics, search, tables.

`grid` lists the cells, `worker` decodes one, `metrics` compares it with the dense video, `store` writes it to disk,
`runner` decodes all of them here or on a Ray cluster (`engines`), `results` and `summary` make the tables.
"""
