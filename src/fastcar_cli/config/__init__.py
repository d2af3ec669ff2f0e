"""Configuration: keys, allowed values, the run, YAML, environment."""
