"""How the server searches queries. Nothing here depends on gRPC.

::

    messages ──► SearchCall ──► QueryRequest ──► Query ──► Scheduler ──► Searcher ──► SendBuffer ──► messages
                 call.py        request.py       query.py  scheduler.py  searcher.py  send_buffer.py
"""
