"""Speed against quality over many settings: grid, cells on disk, metrics, tables.

`grid` lists the cells, `worker` decodes one, `metrics` compares it with the dense video, `store` writes it to disk,
`session` decodes all of them here or on a Ray cluster (`engines`), `results` makes the tables, `report` the page.
"""
