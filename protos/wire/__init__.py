"""What both ends of a connection share: values as messages, how calls end, PEM files."""
