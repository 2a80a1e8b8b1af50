"""Whamming: exact nearest neighbours of binary codes by weighted Hamming distance.

The engine is in :mod:`whamming.native`::

    from whamming.native import Costs, Index
"""

from importlib.metadata import version

__version__ = version("whamming")
__all__ = ["__version__"]
