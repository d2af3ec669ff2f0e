"""The version, where everything may import it without the package's own imports."""

__version__ = "0.1.0"
