"""From a model in floats to a folder whose weights are mapped and run as they lie there: `fastcar convert`."""
