"""From a configuration and inputs to videos: resolving, decoding, recipes, reports, engines."""
