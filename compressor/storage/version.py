"""The version of this package, which is written into the files that it makes."""

__version__ = "0.1.0"
