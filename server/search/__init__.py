"""The life of a query on the server, without a word of gRPC.

::

    messages ──► SearchCall ──► QueryRequest ──► Query ──► Scheduler ──► Searcher ──► SendBuffer ──► messages
                 call.py        request.py       query.py  scheduler.py  searcher.py  send_buffer.py
"""
