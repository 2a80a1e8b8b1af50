"""The command ``whamming``. Each group of commands has its own file; ``program.py`` combines them.

::

    program.py     entry point, exit codes
      serving.py     serve
      indexes.py     create, list, stats, seal, compact, drop
      items.py       get, delete, export
      importing.py   import                    checkpoint.py   progress of an import
      encoding.py    encoder, and the encoder options of create and import
      searching.py   search                    query.py        the query that the options describe
      directory.py   backup, restore, verify
      benching.py    bench
      completion.py  completion
    target.py      the database that a command uses: on a server or in a directory
    output.py      lines, JSON, progress bars
    parser.py      argparse with examples, suggestions and one-line errors
"""

from whamming.cli.program import build_parser, main

__all__ = ["build_parser", "main"]
