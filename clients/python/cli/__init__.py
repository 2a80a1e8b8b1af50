"""The command ``whamming``: a file per group of commands, which ``program.py`` puts together.

::

    program.py     all of them, and exit codes
      serving.py     serve
      indexes.py     create, list, stats, seal, compact, drop
      items.py       get, delete, export
      importing.py   import                    checkpoint.py   how far an import has come
      searching.py   search                    query.py        a query from codes, files and stored items
      directory.py   backup, restore, verify
      benching.py    bench
      completion.py  completion
    target.py      where a command works: a server, or a directory
    output.py      lines, JSON, progress bars
    parser.py      help, examples, what is wrong with a command line
"""

from whamming.cli.program import build_parser, main

__all__ = ["build_parser", "main"]
