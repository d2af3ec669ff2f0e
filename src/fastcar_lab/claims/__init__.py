"""The paper's claims measured again: `fastcar lab claims --model M -o DIR`.

`study` runs what the claims need through the sweep's loop; each `c*.py` judges one claim from what is on disk; `stats`
has the spread, `page` writes claims.json, a CSV a claim, plots and claims.html.
"""
