"""The benchmark that anybody can run: `fastcar lab bench`."""
