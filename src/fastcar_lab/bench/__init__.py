"""The benchmark that anybody can run: `python -m fastcar_lab.bench`."""
