"""What a client can meet beyond the errors of a database in this process.

::

    WhammingError
    └── ServiceError                 the call failed
        ├── UnavailableError         the server cannot be reached, or shuts down
        ├── DeadlineError            no answer in time
        ├── OverloadedError          the server takes on no more; try again later
        ├── AnswerTooLargeError      an answer does not fit into one message; ask for less
        └── LocalOnlyError           the network cannot do this yet; a database in this process can
"""

from whamming.native import WhammingError


class ServiceError(WhammingError):
    """A call failed for a reason that only a remote database has."""


class UnavailableError(ServiceError):
    """The server cannot be reached, or shuts down."""


class DeadlineError(ServiceError, TimeoutError):
    """There was no answer in time."""


class OverloadedError(ServiceError):
    """The server takes on no more; try again later."""


class AnswerTooLargeError(ServiceError):
    """An answer does not fit into one message; ask for less."""


class LocalOnlyError(ServiceError, NotImplementedError):
    """The network cannot do this yet; a database in this process can."""
