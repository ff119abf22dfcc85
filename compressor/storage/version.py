"""The version of this package, which is written into the files that it makes."""

__version__ = "0.2.0.dev0"
